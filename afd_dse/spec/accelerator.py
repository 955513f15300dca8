"""An accelerator as the catalogue describes it and as a job may override it."""

from pydantic import BaseModel, ConfigDict, Field


class Accelerator(BaseModel):
    """Peak rates, memory, links, power and price of one accelerator. SI inside: bytes, bytes/s, FLOP/s, watts.

    ``tables`` names the folder of operator tables measured on it; ``efficiency_from`` names the accelerator whose
    measured efficiency is borrowed when it has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    generation: str
    tables: str | None = None
    efficiency_from: str | None = None
    peak_flops: dict[str, float] = Field(description="dense peak FLOP/s by dtype: bfloat16, fp8, fp4, int8")
    hbm_bytes: float
    hbm_bytes_per_s: float
    scale_up_gpus: int = Field(description="GPUs of one scale-up (NVLink) domain")
    scale_up_bytes_per_s: float = Field(description="per GPU and direction")
    scale_up_latency_s: float = 2e-6
    scale_out_bytes_per_s: float = Field(description="per GPU and direction")
    scale_out_latency_s: float = 5e-6
    node_gpus: int = Field(description="GPUs of one node (tray)")
    power_w: float = Field(description="all-in power of one GPU with its share of node, network and cooling")
    usd_per_gpu_hour: float = Field(description="reference price; a pool of a job may override it")
    source: str
