"""What a measured run leaves unsaid: data types of the published checkpoints and of the frameworks' recipes."""

from afd_dse.architecture.catalogue import load_model
from afd_dse.architecture.model import ModelArchitecture, Quantization
from afd_dse.architecture.quantization import MXFP4, quantization_for
from afd_dse.errors import InputError

_FP8 = ("fp8", "fp8_block")


def recipe(
    model: ModelArchitecture, framework: str, generation: str, gemm: str, moe: str, kv_cache: str
) -> Quantization:
    """Data types of a run on an accelerator of ``generation``; an empty one is what the recipe says.

    Raises :class:`InputError` where the accelerator cannot compute in them.
    """
    own = model.quantization
    asked: dict[str, str] = {}
    if gemm:
        asked["gemm"] = _flavour(model, gemm, "gemm")
    if moe:
        asked["moe"] = _flavour(model, moe, "moe")
    if own.moe == MXFP4:
        # Checkpoints with MXFP4 experts run as they are, whatever 4-bit type a table of runs files them under.
        asked = {"moe": "w4a8_mxfp4_mxfp8"} if generation.startswith("blackwell") else {}
    quantized = {asked.get("gemm", own.gemm), asked.get("moe", own.moe)} != {"bfloat16"}
    # TensorRT-LLM's quantised checkpoints say so themselves; vLLM's recipes set it where the attention kernels gain.
    eight_bit = framework == "trtllm" or (framework == "vllm" and generation.startswith("blackwell"))
    if kv_cache or (quantized and eight_bit):
        asked["kv_cache"] = kv_cache or "fp8"
    return quantization_for(model, asked, generation)


def _flavour(model: ModelArchitecture, dtype: str, role: str) -> str:
    """``dtype`` as the checkpoint that was run stores it: FP8 is block-scaled where the publisher's own release is."""
    if dtype not in _FP8:
        return dtype
    own: str = getattr(model.quantization, role)
    if own in _FP8:
        return own
    try:
        released: str = getattr(load_model(f"{model.name}-FP8").quantization, role)
    except InputError:
        return dtype
    return released if released in _FP8 else dtype
