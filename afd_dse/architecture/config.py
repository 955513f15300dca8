"""A Hugging Face ``config.json`` of a supported family, read into a :class:`ModelArchitecture`."""

from collections import Counter
from collections.abc import Mapping, Sequence

from afd_dse.architecture.attention import read_attention
from afd_dse.architecture.families import family_of, language_part
from afd_dse.architecture.ffn import read_ffn
from afd_dse.architecture.fields import Fields
from afd_dse.architecture.model import LayerKind, LinearAttention, ModelArchitecture, MoeFfn
from afd_dse.architecture.quantization import read_quantization
from afd_dse.errors import InputError, Problem

_MOST_LAYERS = 1000


def read_config(
    config: Mapping[str, object],
    name: str,
    *,
    separate_quantization: Mapping[str, object] | None = None,
    path: str = "model",
) -> ModelArchitecture:
    """Read ``config`` (the parsed ``config.json``) as the model called ``name``.

    ``separate_quantization`` is the content of an ``hf_quant_config.json`` beside it; ``config`` wins where
    both say something. ``path`` starts the dotted path of a field in messages. Raises InputError, with one
    problem a field, for an unknown model type, a missing essential field, or a value that cannot be.
    """
    family = family_of(config, path)
    inner, inner_path = language_part(config, path)
    fields = Fields(inner, config, inner_path, path)
    layers = fields.whole("num_hidden_layers", "n_layers")
    hidden = fields.whole("hidden_size", "d_model")
    vocabulary = fields.whole("vocab_size")
    _refuse_unmodelled(fields)
    if layers > _MOST_LAYERS:
        fields.report("num_hidden_layers", layers, "is not usable", f"at most {_MOST_LAYERS} are read")
    if fields.problems:
        raise InputError(fields.problems)
    attention = read_attention(fields, family, layers, hidden)
    ffn = read_ffn(fields, family, layers)
    next_token_layers = _next_token_layers(fields)
    tied = fields.flag("tie_word_embeddings", family.tied)
    if fields.problems:
        raise InputError(_distinct(fields.problems))
    counts = Counter(zip(attention, ffn, strict=True))
    kinds = tuple(LayerKind(attention=a, ffn=f, count=count) for (a, f), count in counts.items())
    quantization = read_quantization(
        fields,
        separate_quantization,
        layers=layers,
        routed=any(isinstance(kind.ffn, MoeFfn) for kind in kinds),
        linear=any(isinstance(kind.attention, LinearAttention) for kind in kinds),
        expert_modules=family.expert_modules,
    )
    if fields.problems:
        raise InputError(_distinct(fields.problems))
    return ModelArchitecture(
        name=name,
        family=family.name,
        hidden=hidden,
        vocabulary=vocabulary,
        kinds=kinds,
        tied_embeddings=tied,
        next_token_layers=next_token_layers,
        quantization=quantization,
    )


def _distinct(problems: Sequence[Problem]) -> list[Problem]:
    """Each problem once: a field that several kinds of layers use is read for each."""
    return list({str(problem): problem for problem in problems}.values())


def _next_token_layers(fields: Fields) -> int:
    """MTP modules; absent means none."""
    stated = fields.optional_whole("num_nextn_predict_layers", "mtp_num_hidden_layers")
    if stated is not None:
        return stated
    if not fields.flag("use_mtp", True):
        return 0
    modules = fields.optional_whole("num_mtp_modules") or 0
    return modules * (fields.optional_whole("mtp_transformer_layers") or 1 if modules else 0)


def _refuse_unmodelled(fields: Fields) -> None:
    """Options that change a layer's cost in ways that the architecture cannot express."""
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        value = fields.raw(key)
        if value not in (None, 0):
            fields.report(key, value, "is not modelled", "only models with 0 here can be read")
