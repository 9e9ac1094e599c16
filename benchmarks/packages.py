"""Programs of other people, as they are: the examples and command lines of packages, and files of checkouts.

packages.toml lists them; this file makes the small data and the random weights that they find in their folder under the
names that they ask for, and collects what they leave: their variables, and the weights that they save.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import struct
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

SIZES = {  # of a model of transformers, under all the names that its configurations have for them
    **dict.fromkeys(("hidden_size", "d_model", "image_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner"), 64),
    **dict.fromkeys(("head_dim", "d_kv"), 16),
    "max_position_embeddings": 128,
    "num_local_experts": 4,
    "vocab_size": 256,
    "num_labels": 1,
}
SPECIAL = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
SAVED = ("*.safetensors", "*.pt", "*.tar")
FENCED = re.compile(r"```py(?:thon)?\n(.*?)```", re.S)
INDENTED = re.compile(r"^( *)Example[^\n]*\n((?:\1(?: +|>>>|\.\.\.)[^\n]*\n|\s*\n)+)", re.M)


class Package(NamedTuple):
    """A program of other people (see packages.toml)."""

    style: str
    runs: str
    needs: tuple[str, ...] = ()
    makes: Mapping[str, str] = MappingProxyType({})
    given: str = ""
    checkout: str = ""

    @property
    def whose(self) -> str:
        """Say where it is from."""
        if self.checkout:
            return f"the repository's {self.runs.split()[0]}"
        return "its command" if " " in self.runs else "its example"

    def make(self) -> None:
        """Make what it finds in the current folder."""
        if self.checkout:
            shutil.copytree(Path(os.environ["CHECKOUTS"], self.checkout), ".", dirs_exist_ok=True)
        for path, kind in self.makes.items():
            torch.manual_seed(0)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            if kind.isidentifier():
                globals().get(kind, partial(transformer, kind=kind))(path)
            else:
                Path(path).write_text(kind, "utf-8")
        if " " not in self.runs:
            Path("example.py").write_text(example(self.runs), "utf-8")

    def run(self, device: str) -> list[float]:
        """Run it in the current folder; return the numbers that it leaves."""
        before = set(saved())
        command = shlex.split(self.runs.replace("{device}", device)) if " " in self.runs else ["example.py"]
        names: dict[str, Any] = {}
        if self.given:
            exec(self.given.replace("{device}", device), names)
        if device == "cpu" and command == ["example.py"]:
            text = Path("example.py").read_text("utf-8")
            Path("example.py").write_text(text.replace('"cuda"', '"cpu"'), "utf-8")
        found = execute(command, names)
        loaded = [load(path) for path in saved() if path not in before]
        return [number for value in (*found.values(), *loaded) for number in numbers(value)]


def packages() -> dict[str, Package]:
    """Return the programs by their names; those of checkouts only if there is the folder that they are in."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    known = {name: Package(name, **{**entry, "needs": tuple(entry.get("needs", ()))}) for name, entry in table.items()}
    checkouts = Path(os.environ.get("CHECKOUTS", os.devnull))
    return {name: it for name, it in known.items() if not it.checkout or (checkouts / it.checkout).is_dir()}


def example(place: str) -> str:
    """Return the first example in the documentation of an object, as a program."""
    module, _, path = place.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    text = inspect.cleandoc(found if isinstance(found, str) else found.__doc__ or "") + "\n"
    fenced, indented = FENCED.search(text), INDENTED.search(text)
    assert fenced or indented, f"{place} has no example"
    code = textwrap.dedent(fenced[1] if fenced else indented[2].replace("::\n", "\n"))
    return "".join(each.source for each in doctest.DocTestParser().get_examples(code)) or code


def execute(command: list[str], names: dict[str, Any]) -> dict[str, Any]:
    """Run a line of the shell in this process; return the names that it leaves."""
    module, (first, *rest) = command[0] == "-m", command[command[0] == "-m" :]
    sys.argv = [first, *rest]
    try:
        if module:
            return runpy.run_module(first, names, "__main__", alter_sys=True)
        if first.endswith(".py"):
            sys.path.insert(0, os.getcwd())
            return runpy.run_path(first, names, "__main__")
        (entry,) = importlib.metadata.entry_points(group="console_scripts", name=first)
        entry.load()()
    except SystemExit as end:
        if end.code:
            raise
    return {}


def saved() -> list[Path]:
    """Return the files of weights below the current folder."""
    return sorted(path for pattern in SAVED for path in Path().rglob(pattern))


def load(path: Path) -> Any:
    """Return what such a file holds."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, "cpu", weights_only=False)


def numbers(value: Any) -> Iterator[float]:
    """Return two norms of each tensor in a value, and of each picture; plain numbers may be times."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, nn.Module):
            yield from numbers(list(leaf.state_dict().values()))
        elif type(leaf).__module__.startswith("PIL."):
            yield from numbers(torch.tensor(list(leaf.tobytes())))
        elif type(leaf).__name__ == "ndarray" and leaf.dtype.kind in "fiu":
            yield from numbers(torch.from_numpy(leaf.copy()))
        elif isinstance(leaf, torch.Tensor):
            flat = leaf.detach().cpu().double().nan_to_num().flatten()
            yield from (flat.norm().item(), (flat * torch.linspace(1, 2, len(flat), device="cpu")).norm().item())


# What they find


SENTENCES = [f"The {a} {b} over the {c} ." for a, b, c in zip("ABCDEFGH", "ijklmnop", "stuvwxyz", strict=True)]


def transformer(path: str, kind: str, **more: Any) -> None:
    """Save a small model of transformers with random weights, and a tokenizer of a few words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    of = getattr(transformers, kind)
    defaults = of.config_class()
    ids = {f"{name}_token_id": i for i, name in enumerate(SPECIAL[:3])} | {"decoder_start_token_id": 0}
    sizes = {name: size for name, size in SIZES.items() if hasattr(defaults, name)}
    of(of.config_class(**sizes | ids | more)).save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [f"<{name}>" for name in SPECIAL]
    tokenizer.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=marks, vocab_size=250))
    given = {f"{name}_token": mark for name, mark in zip(SPECIAL, marks, strict=True)}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given).save_pretrained(path)


def lines(path: str, rows: list[dict[str, Any]]) -> None:
    """Write a data set with the splits "train" and "test"."""
    Path(path).mkdir(parents=True)
    for split in ("train", "test"):
        Path(path, f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")


def stories(path: str) -> None:
    """Write texts."""
    lines(path, [{"text": text} for text in SENTENCES * 50])


def preferences(path: str) -> None:
    """Write prompts, each with a better and a worse answer."""
    lines(path, [{"prompt": text, "chosen": " yes over A", "rejected": " no over B"} for text in SENTENCES])


def picture(number: int, size: int = 32) -> Any:
    """Return a picture: noise, of which the upper left part is bright."""
    from PIL import Image

    noise = torch.randint(0, 128, (size, size, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
    noise[: size // 2, : size // 2] += 100
    return Image.frombytes("RGB", (size, size), bytes(noise.flatten().tolist()))


def folders(path: str) -> None:
    """Write pictures of two classes, each in its folder."""
    for number in range(8):
        name = Path(path, f"class{number % 2}", f"{number}.png")
        name.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(name)


def boxes(path: str) -> None:
    """Write pictures with a box each, as ultralytics reads them."""
    for part in ("images", "labels"):
        Path(path, part).mkdir(parents=True)
    for number in range(8):
        picture(number, 64).save(Path(path, "images", f"{number}.png"))
        Path(path, "labels", f"{number}.txt").write_text("0 0.25 0.25 0.5 0.5\n")
    Path(path, "data.yaml").write_text(f"path: {Path(path).resolve()}\ntrain: images\nval: images\nnames: [square]\n")


def mnist(path: str) -> None:
    """Write MNIST's four files, of noise."""
    Path(path, "MNIST", "raw").mkdir(parents=True, exist_ok=True)
    for split in ("train", "t10k"):
        images = bytes(range(256)) * 49  # 16 of them
        header = struct.pack(">4i", 2051, 16, 28, 28)
        Path(path, "MNIST", "raw", f"{split}-images-idx3-ubyte").write_bytes(header + images)
        labels = struct.pack(">2i", 2049, 16) + bytes(i % 10 for i in range(16))
        Path(path, "MNIST", "raw", f"{split}-labels-idx1-ubyte").write_bytes(labels)


def tokens(path: str) -> None:
    """Write texts as nanoGPT reads them."""
    for name in ("train.bin", "val.bin"):
        Path(path).mkdir(parents=True, exist_ok=True)
        Path(path, name).write_bytes(struct.pack("<1000H", *(i * i % 97 for i in range(1000))))


def ddpm(path: str) -> None:
    """Save a pipeline of diffusers, for pictures without words."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = UNet2DModel(8, block_out_channels=(8,), norm_num_groups=4, layers_per_block=1, add_attention=False, **blocks)
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(path)


def stable_diffusion(path: str) -> None:
    """Save another, for pictures from words."""
    from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    marks = ["<|startoftext|>", "<|endoftext|>"]
    letters = [letter + end for letter in "abcdefghijklmnopqrstuvwxyz" for end in ("", "</w>")]
    words = CLIPTokenizer({word: i for i, word in enumerate(letters + marks)}, [], model_max_length=77)
    text = CLIPTextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        attention_head_dim=4,
        cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    scheduler = PNDMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True)
    parts = (
        AutoencoderKL(block_out_channels=(8,), norm_num_groups=4),
        CLIPTextModel(text),
        words,
        unet,
        scheduler,
        None,
        None,
    )
    StableDiffusionPipeline(*parts, requires_safety_checker=False).save_pretrained(path)
