"""The command line: reprise generate | prepare | inspect | bench."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any

import reprise
from reprise import _reprise, bench
from reprise.costs import parameters, predicted_speedup, prefill_operations
from reprise.engram import prepare_checkpoint
from reprise.llm import engine_config_from
from reprise.outputs import RequestOutput
from reprise.sampling_params import REPLAY_MODES, REPLAY_NAMES, replay_mode


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. A mistake of the caller's is one line on stderr and exit code 2."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, RuntimeError, OSError, ImportError, MemoryError) as error:
        print(f"reprise: error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reprise", description="Run DeepSeek-V4.1-style decoders.")
    parser.add_argument("--version", action="version", version=f"reprise {reprise.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    generate = commands.add_parser("generate", help="continue prompts with a checkpoint")
    generate.add_argument("model", help="checkpoint folder")
    generate.add_argument("prompts", nargs="*", metavar="PROMPT", help="a prompt")
    generate.add_argument("--prompt", action="append", default=[], help="a prompt; may be given more than once")
    generate.add_argument("--prompt-ids", action="append", default=[], help="a prompt as token ids: 5,17,3")
    generate.add_argument("--json", action="store_true", help="print one JSON list of outputs")
    add_engine_arguments(generate)
    add_sampling_arguments(generate)
    generate.set_defaults(run=_generate)

    prepare = commands.add_parser(
        "prepare", help="write what the C++ engine needs beside a checkpoint (Engram's vocabulary)"
    )
    prepare.add_argument("checkpoint", help="checkpoint folder")
    prepare.set_defaults(run=_prepare)

    inspect = commands.add_parser("inspect", help="print a checkpoint's facts and the roles of its layers")
    inspect.add_argument("checkpoint", help="checkpoint folder")
    inspect.add_argument("--prompt-len", type=int, default=2048, metavar="N", help="of the prefill that is predicted")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    add_engine_arguments(inspect)
    inspect.set_defaults(run=_inspect)

    benches = commands.add_parser("bench", help="run a benchmark").add_subparsers(
        dest="bench", required=True, metavar="NAME"
    )
    for module_info in pkgutil.iter_modules(bench.__path__):
        module = importlib.import_module(f"reprise.bench.{module_info.name}")
        if hasattr(module, "add_arguments"):
            summary = (module.__doc__ or "").strip().splitlines()
            sub = benches.add_parser(module_info.name.replace("_", "-"), help=summary[0] if summary else None)
            module.add_arguments(sub)
            sub.set_defaults(run=module.main)
    return parser


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the engine; engine_options turns them into LLM's keywords."""
    group = parser.add_argument_group("engine")
    group.add_argument("--replay", choices=list(REPLAY_MODES), default="bounded", help="rows the replay layers run on")
    group.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    group.add_argument("--kv-cache-dtype", choices=["auto", "model"], default="auto")
    group.add_argument("--kv-cache-memory", type=int, default=0, metavar="BYTES", help="0 = a share of the free memory")
    group.add_argument("--max-num-seqs", type=int, metavar="N")
    group.add_argument("--max-num-batched-tokens", type=int, metavar="N")
    group.add_argument("--max-model-len", type=int, metavar="N")
    group.add_argument("--page-size", type=int, metavar="N")
    group.add_argument("--num-threads", type=int, metavar="N")
    group.add_argument("--enable-prefix-caching", action="store_true")
    group.add_argument("--prefix-rebuild", choices=["auto", "exact", "bounded"], default="auto")
    group.add_argument("--tokenizer", help="tokenizer.json or its folder, default the model's")


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    names = (
        *(
            "replay",
            "dtype",
            "kv_cache_dtype",
            "kv_cache_memory",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
        ),
        *("page_size", "num_threads", "enable_prefix_caching", "prefix_rebuild", "tokenizer"),
    )
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {**options, "use_tqdm": sys.stderr.isatty()}


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Options named as SamplingParams' fields."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, default=16)
    group.add_argument("--temperature", type=float, default=1.0, help="0 = greedy")
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--seed", type=int)
    group.add_argument("--stop", action="append", help="a string that ends the text; may be given more than once")
    group.add_argument("--stop-token-ids", type=_token_ids, help="token ids that end it: 1,2")
    group.add_argument("--ignore-eos", action="store_true")
    group.add_argument("--logprobs", type=int, help="entries per generated token, -1 = the whole vocabulary")
    group.add_argument("--prompt-logprobs", type=int, help="entries per prompt token")


def sampling_params(args: argparse.Namespace) -> reprise.SamplingParams:
    fields = {field.name for field in dataclasses.fields(reprise.SamplingParams)}
    # `replay` is the engine's here, so that a mode it cannot serve is reported as its reason.
    return reprise.SamplingParams(**{name: value for name, value in vars(args).items() if name in fields - {"replay"}})


def _token_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted token ids such as 5,17,3 but got {text!r}") from None


def _generate(args: argparse.Namespace) -> int:
    try:
        token_prompts = [{"prompt_token_ids": _token_ids(ids)} for ids in args.prompt_ids]
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None
    prompts: list[Any] = [*args.prompts, *args.prompt, *token_prompts]
    if not prompts:
        raise ValueError("wanted at least one PROMPT, --prompt or --prompt-ids but got none")
    params = sampling_params(args)
    options = engine_options(args)
    llm = reprise.LLM(args.model, **options)
    outputs = llm.generate(prompts, params, use_tqdm=options["use_tqdm"])
    if args.json:
        print(json.dumps([output_facts(output) for output in outputs], indent=1))
        return 0
    for output in outputs:
        completion = output.outputs[0]
        if len(outputs) > 1:
            print(f"--- {output.prompt if output.prompt is not None else output.prompt_token_ids}")
        print(completion.text if llm.has_tokenizer else " ".join(map(str, completion.token_ids)))
        if output.error:
            raise RuntimeError(f"request {output.request_id} was given up: {output.error}")
    return 0


def output_facts(output: RequestOutput) -> dict[str, Any]:
    """A request's output as JSON values."""
    facts = dataclasses.asdict(output)
    for completion in facts["outputs"]:
        del completion["hidden_states"]
    return facts


def _prepare(args: argparse.Namespace) -> int:
    reprise.load_model_config(args.checkpoint)
    path = prepare_checkpoint(args.checkpoint)
    print(f"wrote {path}" if path else "nothing to prepare: the model has no Engram")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    """What can be said without loading a weight."""
    config = reprise.load_model_config(args.checkpoint)
    options = {name: value for name, value in engine_options(args).items() if name not in ("tokenizer", "use_tqdm")}
    engine_config = engine_config_from(options)
    if args.prompt_len < 1:
        raise ValueError(f"wanted --prompt-len of at least 1 but got {args.prompt_len}")
    mode, reason = _reprise.decide_replay(replay_mode(args.replay), config)
    groups, max_model_len = _reprise.describe_cache_groups(config, engine_config)
    facts = {
        "config": {name: _plain(getattr(config, name)) for name in dir(config) if _is_fact(config, name)},
        "replay": {"mode": REPLAY_NAMES[mode], "reason": reason},
        "max_model_len": max_model_len,
        "cache_groups": _plain(groups),
        "layers": layer_table(config, args.prompt_len),
        "prefill": {
            name: {
                "operations": sum(prefill_operations(config, name, args.prompt_len)),
                "speedup": predicted_speedup(config, name, args.prompt_len),
            }
            for name in ("off", "bounded", "exact")
        },
    }
    if args.json:
        print(json.dumps(facts, indent=1))
        return 0
    print("config:")
    for name, value in facts["config"].items():
        print(f"  {name}: {value}")
    print(f"replay: {REPLAY_NAMES[mode]}" + (f", not {args.replay}: {reason}" if reason else ""))
    print(f"caches for requests of at most {max_model_len} tokens:")
    for group in facts["cache_groups"]:
        print("  {name}: {num_pages} pages of {page_size} tokens, {bytes} bytes".format(**group))
    print(f"layers, and their share of a plain prefill of {args.prompt_len} tokens:")
    for layer in facts["layers"]:
        print(
            f"  {layer['layer']:>3}  {layer['role']:<7}  ratio {layer['compress_ratio']}"
            f"  {layer['parameters']:>12,} parameters  {layer['share']:>6.1%}  {layer['does']}".rstrip()
        )
    print("prefill, predicted:")
    for name, prefill in facts["prefill"].items():
        saved = 1 - 1 / prefill["speedup"]
        print(
            f"  {name:<8} {prefill['operations']:.3e} operations, {saved:.1%} saved,"
            f" {prefill['speedup']:.2f} times as fast"
        )
    return 0


def layer_table(config: reprise.ModelConfig, prompt_len: int) -> list[dict[str, Any]]:
    """Each layer's role, what it reads, its parameters and its share of a plain prefill's operations."""
    operations = prefill_operations(config, "off", prompt_len)
    return [
        {
            **layer_facts(config, layer),
            "parameters": parameters(config, layer),
            "share": operations[layer] / sum(operations),
        }
        for layer in range(config.num_hidden_layers)
    ]


def layer_facts(config: reprise.ModelConfig, layer: int) -> dict[str, Any]:
    """A layer's role: encoder layers publish what the later ones read, replay layers own only window KV."""
    kv_source, index_source = config.kv_source_of(layer), config.index_source_of(layer)
    does = []
    if layer in config.engram_layer_ids:
        does.append("Engram")
    if layer in config.kv_source_layer_ids:
        does.append("publishes KV")
    elif kv_source >= 0:
        does.append(f"reads KV of {kv_source}")
    if layer in config.index_source_layer_ids:
        does.append("selects")
    elif index_source >= 0:
        does.append(f"reads selection of {index_source}")
    if layer == config.candidate_source_layer_id:
        does.append("keeps candidates")
    return {
        "layer": layer,
        "role": "encoder" if layer < config.num_encoder_layers() else "replay",
        "compress_ratio": config.compress_ratios[layer],
        "kv_source": kv_source,
        "index_source": index_source,
        "does": ", ".join(does),
    }


def _is_fact(record: object, name: str) -> bool:
    return not name.startswith("_") and not callable(getattr(record, name))


def _plain(value: object) -> Any:
    if isinstance(value, _reprise.ReplayMode):
        return REPLAY_NAMES[value]
    if isinstance(value, _reprise.Dtype):
        return {_reprise.Dtype.kFloat32: "float32", _reprise.Dtype.kBFloat16: "bfloat16"}.get(value, "auto")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, _reprise.CacheGroupStats):
        return {name: getattr(value, name) for name in ("name", "num_pages", "free_pages", "page_size", "bytes")}
    return value
