"""Other names of models and GPUs, and the names that deepvm has for them.

Edit distance (:mod:`deepvm.core.spelling`) cannot find that Llama 3.1 8B is llama-8b. Functions
return the name as it is written on the command line; empty if unknown.
"""

import re
from collections.abc import Collection

from deepvm.core.spelling import for_a_shell, one_of

# Families, without punctuation, and the member that most people mean
MODELS = {
    "llama": "llama-8b",
    "llama2": "llama-7b",
    "llama3": "llama-8b",
    "mistral": "mistral-7b",
    "qwen": "qwen2.5-7b",
    "qwen2": "qwen2.5-7b",
    "qwen3": "qwen3-8b",
    "gemma": "gemma2-9b",
    "gemma2": "gemma2-9b",
    "phi": "phi3-mini",
    "phi3": "phi3-mini",
    "mpt": "mpt-7b",
    "gptneox": "gpt-neox-20b",
    "gpt": "gpt2",
    "bert": "bert-base",
    "vit": "vit-b",
    "resnet": "resnet50",
    "efficientnetv2": "efficientnet-v2-m",
    "sd": "stable-diffusion-2",
    "diffusion": "stable-diffusion-2",
    "stablediffusion": "stable-diffusion-2",
    "stablediffusion2": "stable-diffusion-2",
    "stablediffusionxl": "sdxl",
    "stablediffusionxlbase": "sdxl",
    "stablediffusionxl10": "sdxl",
    "sdxlbase": "sdxl",
}
# Prefixes of family names, and of our names of their members: the size follows a dash
_FAMILIES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen3": "qwen3",
    "qwen": "qwen2.5",
    "gemma": "gemma2",
    "mpt": "mpt",
    "esm": "esm2",
}
_VARIANT = r"-(instruct|chat|base|hf|it|uncased|cased|v\d+(\.\d+)*|\d+k)\b"
_SIZE = r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])"

# Other names of GPU models, and generations, without punctuation
GPUS = {
    "a10": "A10G",
    "l40": "L40S",
    "rtxpro6000": "RTX PRO Server 6000",
    "rtx6000": "RTX PRO Server 6000",
    "rtx4500": "RTX PRO 4500",
    "blackwell": "B200",
    "hopper": "H100",
    "ada": "L4",
    "adalovelace": "L4",
    "ampere": "A100",
    "turing": "T4",
    "volta": "V100",
}
_GPU_NOISE = r"^\d+ ?x ?|nvidia|tesla|geforce|tensor|core|gpu|sxm\d?|pcie|nvl|hbm\d?e?|[^a-z0-9]"
_GPU_MEMORY = r"(?<![a-z0-9])(\d{2,3}) ?gi?b?\b"

# Accelerators that no catalog has: how they are called, whose they are, and what comes nearest
NOT_RENTED = {
    r"(rtx|gtx)?(50[5-9]0)(ti|super)*": ("GeForce", "RTX PRO Server 6000"),
    r"(rtx|gtx)?(40[5-9]0)(ti|super)*": ("GeForce", "L40S"),
    r"(rtx|gtx)?(30[5-9]0)(ti|super)*": ("GeForce", "A10G"),
    r"(rtx|gtx)?(20[5-9]0)(ti|super)*": ("GeForce", "T4"),
    r"(rtx)?a[456]000(ada)?": ("workstation", "A10G"),
    r"(instinct)?mi\d{3}[xa]?": ("AMD", ""),
    r"tpu.*|v[2-6][ep]?": ("Google", ""),
    r"gaudi\d?|hpu": ("Intel", ""),
    r"trainium\d?|trn\d|inferentia\d?|inf\d": ("AWS", ""),
}


def plain(name: str) -> str:
    """A name without case and punctuation: ``ResNet-50`` and ``resnet50`` are one."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def meant_model(name: str, known: Collection[str]) -> str:
    """The preset that is meant: by its plain name, its family and size, or its family alone."""
    text = re.sub(
        _VARIANT, "", name.strip().casefold().rpartition("/")[2].replace("_", "-").replace(" ", "-")
    )
    same = [one for one in known if plain(one) == plain(text)]
    if same:
        return same[0]
    size = re.search(_SIZE, text)
    if size is not None:
        for start, ours in _FAMILIES.items():
            if plain(text).startswith(start) and f"{ours}-{size[0]}" in known:
                return f"{ours}-{size[0]}"
        return ""
    return MODELS.get(plain(text), "")


def meant_gpu(name: str, known: Collection[str], memory_option: str = "") -> str:
    """The GPU model that is meant, with its memory if given: ``A100 --gpu-memory-min 80GB``."""
    text = name.strip().casefold()
    memory = re.search(_GPU_MEMORY, text)
    bare = _bare(re.sub(_GPU_MEMORY, "", text))
    names = {_bare(one): one for one in known}
    model = names.get(bare) or names.get(_bare(GPUS.get(bare, "")))
    if not model:
        return ""
    meant = for_a_shell(model)
    if memory and memory_option:
        meant += f" {memory_option} {memory[1]}GB"
    return meant


def _bare(gpu: str) -> str:
    return re.sub(_GPU_NOISE, "", gpu.casefold())


def not_rented(name: str, known: Collection[str]) -> str:
    """Why no catalog has this accelerator, and the nearest option; empty if unknown."""
    bare = _bare(name)
    for pattern, (maker, near) in NOT_RENTED.items():
        if re.fullmatch(pattern, bare):
            hint = ""
            if near in known:
                hint = f"; nearest: --gpu {for_a_shell(near)}"
            return f"{name} ({maker}) is in no cloud's catalog here{hint}"
    return ""


def none_of(gpu: str, known: Collection[str], meant: str) -> str:
    """The text of an error about an unknown GPU: the known ones, and a reason or a guess."""
    if reason := not_rented(gpu, known):
        return f"{', '.join(known)}; {reason}"
    return one_of(gpu, known, ", ", meant=meant)
