"""A model in one GGUF file → a model folder that transformers trains and vLLM serves.

python -m learner.policy.from_gguf FILE FOLDER

``FILE`` may also be ``package:NAME``: the one GGUF file that an installed Python package carries.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from learner.run.durable import fresh_folder_beside, replace_folder


def find_gguf(source: str) -> Path:
    """The file that ``source`` names. Raises ``FileNotFoundError`` that says what was looked for."""
    kind, colon, name = source.partition(":")
    if kind != "package" or not colon:
        if not Path(source).is_file():
            raise FileNotFoundError(f"{source}: no such file")
        return Path(source)
    spec = find_spec(name)  # found, not imported: its code may want packages that are not here
    if spec is None:
        raise FileNotFoundError(f"{source}: the package is not installed for {sys.executable}")
    files = [file for folder in spec.submodule_search_locations or () for file in Path(folder).glob("*.gguf")]
    if len(files) != 1:
        raise FileNotFoundError(f"{source}: want one GGUF file in the package, found {len(files)}")
    return files[0]


def convert(file: Path, folder: Path) -> None:
    """Write the weights of ``file``, dequantised to float32, and its tokenizer to ``folder``, whole or not at all."""
    aside = fresh_folder_beside(folder)
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    lm = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    lm.config.quantization_config = None  # it describes the file, not what is written
    lm.save_pretrained(aside)
    AutoTokenizer.from_pretrained(**where).save_pretrained(aside)
    replace_folder(aside, folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m learner.policy.from_gguf FILE|package:NAME FOLDER")
    try:
        convert(find_gguf(sys.argv[1]), Path(sys.argv[2]))
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
