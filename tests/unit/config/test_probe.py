import time
def test_a(compose):
    compose(); compose(engine="megatron")
    t=time.process_time(); 
    for _ in range(10): c=compose("nereus.routing.mode=R3")
    print((time.process_time()-t)/10); print(c.nereus, c.actor_rollout_ref.nereus)
    try: compose("nereus.routing.mod=R3")
    except Exception as e: print(type(e), e, e.__cause__)
    try: compose("nereus.routing.mode=null")
    except Exception as e: print(type(e), e, e.__cause__)
    try: compose("+nereus.routing.mode=R2")
    except Exception as e: print(type(e), e, e.__cause__)
    print(compose("+nereus.routing.mod=R2").nereus)
    assert 0
