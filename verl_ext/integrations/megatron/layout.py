"""A parallel layout of verl's Megatron engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """How a model is cut over ranks, by the names of Megatron-Core.

    Attributes:
        tp, pp, cp, ep: tensor, pipeline, context and expert parallel size.
        dp: data parallel size of the dense layers.
        vpp: model chunks a pipeline stage, None without interleaving.
        etp: tensor parallel size of the experts; None is verl's default, the whole tensor parallel size.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    vpp: int | None = None
    etp: int | None = None

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    def __str__(self) -> str:
        parts = [
            f"{name}{size}"
            for name in ("tp", "pp", "vpp", "cp", "ep", "dp")
            if (size := getattr(self, name)) not in (None, 1)
        ]
        if self.etp is not None:
            parts.append(f"etp{self.etp}")
        return "-".join(parts) or "one"
