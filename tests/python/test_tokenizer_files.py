"""What the files of a tokenizer say is what happens: BOS once, no truncation, tokens and templates of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from reprise import LLM, SamplingParams
from reprise.engram import checkpoint_vocabulary
from reprise.tokenizer import Tokenizer

BOS, EOS = "<|bos|>", "<|eos|>"
BOS_ID, EOS_ID = 288, 289  # after the 288 of the bundled tokenizer


@pytest.fixture
def folder(data_dir: Path, tmp_path: Path) -> Path:
    """The bundled tokenizer with a BOS and an EOS token; nothing adds them yet."""
    content = json.loads((data_dir / "v41-tiny-engram" / "tokenizer.json").read_text())
    content["added_tokens"] = [added(BOS_ID, BOS), added(EOS_ID, EOS)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path


def added(token_id: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def template(*ends: str) -> dict[str, Any]:
    """A post-processor that puts `ends` around a text, which stands where "" is."""
    ids = {BOS: BOS_ID, EOS: EOS_ID}
    part = [{"SpecialToken": {"id": e, "type_id": 0}} if e else {"Sequence": {"id": "A", "type_id": 0}} for e in ends]
    special = {e: {"id": e, "ids": [ids[e]], "tokens": [e]} for e in ends if e}
    return {"type": "TemplateProcessing", "single": part, "pair": part, "special_tokens": special}


def edit(folder: Path, **fields: Any) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | fields))


def config(folder: Path, **fields: Any) -> Tokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return Tokenizer(folder)


HI = [71, 72]  # "hi", byte by byte in the bundled vocabulary


@pytest.mark.parametrize(
    ("processor", "fields", "ids"),
    [
        (None, {}, HI),
        (None, {"add_bos_token": True}, [BOS_ID, *HI]),
        (None, {"add_bos_token": True, "add_eos_token": True}, [BOS_ID, *HI, EOS_ID]),
        (None, {"add_eos_token": True}, [*HI, EOS_ID]),
        (template(BOS, ""), {}, [BOS_ID, *HI]),
        (template(BOS, ""), {"add_bos_token": True}, [BOS_ID, *HI]),
        (template(BOS, ""), {"add_bos_token": False}, HI),
        (template(BOS, ""), {"add_eos_token": True}, [BOS_ID, *HI, EOS_ID]),
        (template(BOS, "", EOS), {}, [BOS_ID, *HI, EOS_ID]),
        (template(BOS, "", EOS), {"add_bos_token": True, "add_eos_token": False}, [BOS_ID, *HI]),
    ],
)
def test_bos_and_eos_stand_once(folder: Path, processor: Any, fields: dict[str, Any], ids: list[int]) -> None:
    edit(folder, post_processor=processor)
    tokenizer = config(folder, bos_token=BOS, eos_token=added(EOS_ID, EOS), **fields)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    assert tokenizer.encode("hi") == ids
    # A template writes what is to stand there anyway.
    text = BOS * (ids[0] == BOS_ID) + "hi" + EOS * (ids[-1] == EOS_ID)
    assert tokenizer.encode(text) == ids
    assert tokenizer.encode("") == [i for i in ids if i not in HI]
    # Only what would be added is held to once: a user's own two stay two.
    assert tokenizer.encode("a" + BOS + BOS).count(BOS_ID) == 2 + (ids[0] == BOS_ID)


def test_a_processor_needs_no_config_for_bos_once(folder: Path) -> None:
    edit(folder, post_processor=template(BOS, ""))
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("hi") == tokenizer.encode(BOS + "hi") == [BOS_ID, *HI]


def test_special_tokens_map_is_the_older_place(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": BOS, "eos_token": {"content": EOS}}))
    assert config(folder, add_bos_token=True).encode("hi") == [BOS_ID, *HI]


def test_truncation_padding_and_dropout_of_training_are_switched_off(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    truncation = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    pad = {"pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    edit(
        folder,
        truncation=truncation,
        padding={"strategy": {"Fixed": 1000}, "direction": "Left", **pad},
        model=content["model"] | {"dropout": 0.5},
    )
    plain = Tokenizer(Path(__file__).parent.parent / "data" / "v41-tiny-engram")
    text = "The quick brown fox. " * 36
    assert len(plain.encode(text)) > 500
    for _ in range(5):
        assert Tokenizer(folder).encode(text) == plain.encode(text)


def test_a_long_prompt_reaches_the_engine_whole(data_dir: Path, folder: Path, tmp_path: Path) -> None:
    edit(folder, truncation={"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0})
    llm = LLM(data_dir / "v41-tiny", tokenizer=folder, max_model_len=1000, num_threads=1, use_tqdm=False)
    output = llm.generate("hi" * 360, SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)[0]
    assert len(output.prompt_token_ids) == 720


def test_tokens_of_the_config_join_the_vocabulary(folder: Path) -> None:
    think = {"content": "<think>", "special": False, "normalized": False}
    tokenizer = config(folder, added_tokens_decoder={"290": think, "288": added(0, BOS), "71": added(0, "h")})
    assert tokenizer.encode("<think>" + BOS + "hi") == [290, BOS_ID, *HI]
    assert tokenizer.decode([290, BOS_ID, *HI]) == "<think>i"  # "h" is special here
    (folder / "added_tokens.json").write_text('{"<old>": 291}')
    assert config(folder, added_tokens_decoder={"290": think}).encode("<old>") == [291]
    (folder / "added_tokens.json").unlink()
    with pytest.raises(ValueError, match=r"wanted token '<think>' of id 300, as it says, but .* makes it 290"):
        config(folder, added_tokens_decoder={"300": think})
    with pytest.raises(ValueError, match=r"wanted token 'h' of id 3, as it says, but .* makes it 71"):
        config(folder, added_tokens_decoder={"3": {"content": "h"}})


def test_the_engram_vocabulary_is_of_the_same_tokenizer(data_dir: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((data_dir / "v41-tiny-engram" / name).read_bytes())
    before = checkpoint_vocabulary(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"71": {"content": "h"}}}')
    assert checkpoint_vocabulary(tmp_path) == before
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json\] wanted JSON"):
        checkpoint_vocabulary(tmp_path)


def test_the_chat_template_is_kept(folder: Path) -> None:
    assert Tokenizer(folder).chat_template is None
    assert config(folder, chat_template="{{ bos_token }}").chat_template == "{{ bos_token }}"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert config(folder, chat_template=named).chat_template == {"default": "a", "tool_use": "b"}
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert config(folder, chat_template="x").chat_template == "{{ messages }}"


def test_special_tokens_in_a_text_may_be_split(folder: Path) -> None:
    assert BOS_ID not in config(folder, split_special_tokens=True).encode(BOS)
    assert config(folder, add_prefix_space=True).encode("hi")[-1] == HI[-1]
    assert config(folder, add_prefix_space=True).encode("hi") != HI
    assert config(folder, clean_up_tokenization_spaces=True).notices == [
        "tokenizer_config.json asks for clean_up_tokenization_spaces, which is not applied"
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"add_bos_token": "yes"}, "wanted add_bos_token to be true or false but got 'yes'"),
        ({"add_bos_token": True}, "wanted a bos_token to add .* names none"),
        (
            {"add_bos_token": True, "bos_token": "<gone>"},
            "wanted a bos_token to add .*'<gone>' is not in the vocabulary",
        ),
        ({"add_eos_token": True}, "wanted a eos_token to add"),
        ({"bos_token": 5}, "wanted bos_token to be a token's text but got 5"),
        ({"eos_token": {"contents": "x"}}, "wanted eos_token to be a token's text"),
        ({"added_tokens_decoder": []}, "^$|added_tokens_decoder"),
        ({"added_tokens_decoder": [1]}, "wanted added_tokens_decoder to be an object"),
        (
            {"added_tokens_decoder": {"x": {"content": "y"}}},
            "wanted ids and tokens in added_tokens_decoder but got 'x'",
        ),
        ({"added_tokens_decoder": {"5": "y"}}, "wanted ids and tokens in added_tokens_decoder but got '5'"),
        ({"added_tokens_decoder": {"9" * 30: {"content": "y"}}}, "wanted ids and tokens"),
        ({"added_tokens_decoder": {"5": {"content": None}}}, "wanted|^$"),
        ({"additional_special_tokens": 5}, "wanted additional_special_tokens to be a list of tokens but got 5"),
        ({"chat_template": 5}, "wanted chat_template to be text but got 5"),
        ({"bos_token": "\ud800"}, r"wanted text but got a lone surrogate '\\ud800'"),
    ],
)
def test_a_bad_field_is_named(folder: Path, fields: dict[str, Any], said: str) -> None:
    if said.startswith("^$"):  # an empty list is no list of tokens, and no mistake
        config(folder, **fields)
        return
    with pytest.raises(ValueError, match=said) as error:
        config(folder, **fields)
    assert "tokenizer" in str(error.value) and str(folder) in str(error.value)


def test_files_that_are_no_files_are_named(folder: Path, data_dir: Path) -> None:
    file = folder / "tokenizer.json"
    whole = file.read_bytes()
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(ValueError, match=r"tokenizer\.json\] wanted the file itself but got a Git LFS pointer"):
        Tokenizer(folder)
    file.write_bytes(whole[:20] + b"\xff" + whole[20:])
    with pytest.raises(ValueError, match=r"tokenizer\.json\] wanted text in UTF-8 but got byte 0xff at 20"):
        Tokenizer(folder)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="wanted a regular file but got a pipe"):
        Tokenizer(folder)
    file.unlink()
    file.symlink_to("nowhere")
    for load in (lambda: Tokenizer(folder), lambda: Tokenizer(file)):
        with pytest.raises(ValueError, match=r"tokenizer\.json\] wanted a regular file but got: a link to nothing"):
            load()
    # Also where the tokenizer would be found by itself: it is not silently left out.
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(data_dir / "v41-tiny" / name)
    with pytest.raises(ValueError, match="a link to nothing"):
        LLM(folder, max_model_len=64, use_tqdm=False)


def test_a_panic_of_the_library_is_an_error_that_names_the_file(folder: Path) -> None:
    edit(folder, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(ValueError, match=r"wanted a tokenizer in .*tokenizer\.json but could not read it: Precompiled"):
        Tokenizer(folder)


def test_what_is_no_text_is_refused(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    with pytest.raises(ValueError, match=r"lone surrogate '\\ud800' at 1"):
        tokenizer.encode("a\ud800")
    for bad in (5, None, b"hi", ["hi"]):
        with pytest.raises(ValueError, match="wanted text but got"):
            tokenizer.encode(bad)


def test_a_folder_name_that_is_no_text(folder: Path) -> None:
    odd = os.fsencode(folder) + b"/odd\xff"
    os.mkdir(odd)
    os.rename(folder / "tokenizer.json", odd + b"/tokenizer.json")
    assert Tokenizer(odd).encode("hi") == HI
    os.unlink(odd + b"/tokenizer.json")
    with pytest.raises(ValueError, match=r"found none at .*odd\\xff/tokenizer\.json"):
        Tokenizer(os.fsdecode(odd))
