from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from verl_ext.errors import NereusError

PARTS = ("what", "where", "expected", "got", "change")
errors = st.builds(NereusError, st.text(), **{part: st.text() for part in PARTS[1:]})


@given(errors)
def test_an_error_survives_the_way_from_a_worker_to_the_driver(error):
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is NereusError
    assert [getattr(received, part) for part in PARTS] == [getattr(error, part) for part in PARTS]
    assert str(received) == str(error)


@given(errors)
def test_all_of_it_is_in_the_message(error):
    for part in PARTS:
        assert getattr(error, part) in str(error)
