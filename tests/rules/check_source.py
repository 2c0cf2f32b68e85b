"""Checks one rule of the house over the sources: `check_source.py RULE ROOT`.

A rule takes a file's path (relative to the root) and its text, and yields what is wrong. Beside it stand bad snippets,
which it must report, and good ones, which it must not; both are checked before the sources are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FOLDERS = [  # lowest first
    "scheduler",
    "memory",
    "backends",
    "context",
    "checkpoint",
    "inputs",
    "layers",
    "models",
    "replay",
    "graphs",
    "runtime",
]
WITHOUT_SCHEDULER = {"memory", "backends", "context", "checkpoint", "layers", "models", "replay", "graphs"}
CONTROL_HEADERS = {  # public and torch-free
    "config.h",
    "engine.h",
    "error.h",
    "model_facts.h",
    "request.h",
    "row_runs.h",
    "step_plan.h",
}
UMBRELLAS = {
    "ATen/ATen.h",
    "ATen/Functions.h",
    "ATen/TensorIndexing.h",
    "ATen/TensorOperators.h",
    "torch/all.h",
    "torch/extension.h",
    "torch/torch.h",
}
TENSOR_HEADERS = {"ATen/core/Tensor.h"}  # all that a header of ours may include of torch
PYTHON_HEADER = re.compile(r"pybind11/|torch/csrc/(autograd/python|utils/pybind|Dtype|THP|Exceptions)|torch/python")
OWNING = re.compile(r"\bnew\b|\bdelete\b")
NOISY = re.compile(  # abort(id) is Engine's own
    r"\bstd::(cout|cerr|clog|print|println|abort|exit|terminate|getenv)\b"
    r"|\b(v?f?printf|puts|fputs|perror|_?exit|quick_exit|getenv|secure_getenv)\s*\(|\babort\s*\(\s*\)"
)
ROOM_NAME = re.compile(r"(?<!\w)(?<!c10::)(?<!at::)(cpu|cuda|aten)::")
FAST_MATH = re.compile(
    r"-ffast-math|-Ofast|-funsafe-math-optimizations|-fassociative-math|-ffp-contract=(fast|on)"
    r'|optimize\s*\(\s*"[^"]*fast'
)

Problem = tuple[int, str]  # line, what is wrong with it


class Rule(Protocol):
    def __call__(self, path: str, text: str) -> Iterator[Problem]: ...


@dataclass(frozen=True)
class Checked:
    rule: Rule
    bad: list[tuple[str, str]]  # (path, text) that the rule must report
    good: list[tuple[str, str]]
    folders: tuple[str, ...] = ("engine", "bindings")


def strip(text: str) -> str:
    """The text without comments and the contents of string and character literals; lines stay where they are."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
    )

    def blank(match: re.Match[str]) -> str:
        kept = '""' if match[0][0] in "\"'R" else " "
        return kept + "\n" * match[0].count("\n")

    # A digit separator (1'000) is no character literal.
    return token.sub(blank, re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "", text))


def includes(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line):
            yield number, match[1]


def matches(pattern: re.Pattern[str], text: str, why: str) -> Iterator[Problem]:
    for number, line in enumerate(strip(text).splitlines(), 1):
        if match := pattern.search(line):
            yield number, f"{match[0].strip()}: {why}"


def folder_of(path: str) -> str:
    parts = path.split("/")
    return parts[1] if parts[0] == "engine" else parts[0]


def includes_go_down(path: str, text: str) -> Iterator[Problem]:
    folder = folder_of(path)
    if folder not in FOLDERS and folder != "include":
        return
    for number, header in includes(text):
        target, slash, name = header.partition("/")
        if header == "Python.h":
            yield number, f"the engine includes {header}"
        if not slash:
            continue  # the standard library's: <memory> is no folder of ours
        if folder == "include":
            if target in FOLDERS:
                yield number, f"a public header includes the internal {header}"
            elif Path(path).name in CONTROL_HEADERS and target in ("ATen", "c10", "torch"):
                yield number, f"a torch-free public header includes {header}"
            elif Path(path).name in CONTROL_HEADERS and target == "reprise" and name not in CONTROL_HEADERS:
                yield number, f"a torch-free public header includes {header}, which holds tensors"
        elif target in FOLDERS and FOLDERS.index(target) > FOLDERS.index(folder):
            yield number, f"{folder}/ includes the higher {header}"
        elif target == "scheduler" and folder in WITHOUT_SCHEDULER:
            yield number, f"{folder}/ includes {header}: plan and tensors meet in inputs/ and runtime/ alone"
        elif folder == "scheduler" and target in ("ATen", "c10", "torch"):
            yield number, f"the control plane includes {header}"
        elif folder == "scheduler" and target == "reprise" and name not in CONTROL_HEADERS:
            yield number, f"the control plane includes {header}, which holds tensors"
        elif target in ("nanobind", "bindings"):
            yield number, f"the engine includes {header}"


def rooms_stay_behind_the_door(path: str, text: str) -> Iterator[Problem]:
    folder = Path(path).parent.as_posix()
    room = re.fullmatch(r"(?:engine|tests/cpp)/backends/(\w+)", folder)
    if folder == "tests/cpp/backends":  # of the rooms too
        return
    for number, header in includes(text):
        other = re.match(r"backends/(\w+)/", header)
        if other and not (room and room[1] == other[1]):
            yield number, f"{header} is a room's own: include the operation's header in backends/"
        elif header == "backends/kernels.h" and not path.startswith("engine/backends/") and not room:
            yield number, f"{header} is for rooms and the door: call the operation's function"
    if room is None:
        yield from matches(ROOM_NAME, text, "a room's own name: call the operation's function in backends/")


def no_umbrella_includes(path: str, text: str) -> Iterator[Problem]:
    for number, header in includes(text):
        if header in UMBRELLAS:
            yield number, f"{header} makes every file that includes it slow to compile: include <ATen/ops/x.h>"
        elif path.endswith(".h") and header.startswith("ATen/") and header not in TENSOR_HEADERS:
            yield number, f"{header} in a header: <ATen/core/Tensor.h> at most"


def json_in_sources_only(path: str, text: str) -> Iterator[Problem]:
    for number, header in includes(text):
        public = path.startswith("engine/include/")
        if (
            header.startswith("nlohmann/")
            and not path.endswith(".cpp")
            and (public or header != "nlohmann/json_fwd.hpp")
        ):
            yield number, f"{header} in a header: <nlohmann/json_fwd.hpp> at most, and nothing in a public one"


def python_headers_in_caster_only(path: str, text: str) -> Iterator[Problem]:
    for number, header in includes(text):
        if PYTHON_HEADER.match(header) and path != "bindings/tensor_caster.cpp":
            yield number, f"{header} outside bindings/tensor_caster.cpp"


def no_owning_pointers(path: str, text: str) -> Iterator[Problem]:
    code = re.sub(r"=\s*delete\b", "", text)
    code = re.sub(r"^(\s*#\s*include).*", "", code, flags=re.MULTILINE)
    if path.startswith("bindings/"):  # nanobind's constructors build the object in memory that Python owns
        code = re.sub(r"\bnew\s*\((self|nb::inst_ptr<\w+>\(self\))\)", "", code)
    # A private constructor is out of std::make_unique's reach.
    code = re.sub(r"\bunique_ptr<(\w+)>\(new \1\(", "", code)
    yield from matches(OWNING, code, "memory has an owner: a value, std::unique_ptr or std::vector")


def never_prints_or_aborts(path: str, text: str) -> Iterator[Problem]:
    if path.startswith("engine/"):
        yield from matches(NOISY, text, "the library never prints, aborts or reads the environment")


def no_fast_math(path: str, text: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := FAST_MATH.search(line):
            yield number, f"{match[0]}: a row's result must not depend on where it stands"


RULES = {
    "includes_go_down": Checked(
        includes_go_down,
        bad=[
            ("engine/backends/x.cpp", '#include "layers/attention.h"'),
            ("engine/layers/x.h", '#include "runtime/sampler.h"'),
            ("engine/replay/x.cpp", '#include "scheduler/scheduler.h"'),
            ("engine/models/x.cpp", "#include  <scheduler/page_pool.h>"),
            ("engine/scheduler/x.cpp", "#include <ATen/core/Tensor.h>"),
            ("engine/scheduler/x.h", '#include "reprise/forward_context.h"'),
            ("engine/scheduler/x.h", '#include "backends/linear.h"'),
            ("engine/include/reprise/engine.h", "#include <ATen/core/Tensor.h>"),
            ("engine/include/reprise/engine.h", '#include "reprise/forward_context.h"'),
            ("engine/include/reprise/model_state.h", '#include "scheduler/scheduler.h"'),
            ("engine/runtime/x.cpp", "#include <nanobind/nanobind.h>"),
        ],
        good=[
            ("engine/runtime/x.cpp", '#include "scheduler/scheduler.h"'),
            ("engine/layers/x.cpp", '#include "backends/linear.h"\n#include <vector>'),
            ("engine/include/reprise/model_state.h", "#include <ATen/core/Tensor.h>"),
            ("engine/scheduler/x.h", "#include <memory>"),
            ("bindings/x.cpp", '#include "runtime/sampler.h"\n#include <nanobind/nanobind.h>'),
        ],
    ),
    "rooms_stay_behind_the_door": Checked(
        rooms_stay_behind_the_door,
        bad=[
            ("engine/layers/x.h", '#include "backends/cpu/row_ops.h"'),
            ("engine/backends/x.h", '#include "backends/cpu/block_product.h"'),
            ("engine/backends/cuda/x.cpp", '#include "backends/cpu/row_ops.h"'),
            ("engine/replay/x.cpp", '#include "backends/kernels.h"'),
            ("engine/runtime/x.cpp", "cpu::load_row(rows, step);"),
            ("engine/backends/x.cpp", "return reprise::cpu::linear(x, weight);"),
            ("bindings/x.cpp", '#include "backends/cpu/packed_blocks.h"'),
            ("tests/cpp/layers/x_test.cpp", "cpu::qdq_fp8(row, n);"),
        ],
        good=[
            ("engine/layers/x.h", '#include "backends/linear.h"'),
            ("engine/backends/x.cpp", '#include "backends/kernels.h"\nreturn room_of(x).linear(x, weight);'),
            ("engine/backends/cpu/x.cpp", '#include "backends/cpu/row_ops.h"\nreprise::cpu::linear(x);'),
            ("engine/graphs/x.cpp", "c10::cuda::getCurrentCUDAStream(); at::cuda::CUDAGraph graph; x.cpu();"),
            ("tests/cpp/backends/cpu/x_test.cpp", '#include "backends/cpu/scratch.h"'),
            ("tests/cpp/backends/x_test.cpp", '#include "backends/cpu/number_formats.h"'),
        ],
        folders=("engine", "bindings", "bench", "tests/cpp"),
    ),
    "no_umbrella_includes": Checked(
        no_umbrella_includes,
        bad=[
            *[("engine/layers/x.cpp", f"#include <{header}>") for header in sorted(UMBRELLAS)],
            ("engine/layers/x.h", "#include <ATen/ops/mul.h>"),
        ],
        good=[
            ("engine/layers/x.cpp", "#include <ATen/ops/mul.h>"),
            ("engine/layers/x.h", "#include <ATen/core/Tensor.h>"),
        ],
    ),
    "json_in_sources_only": Checked(
        json_in_sources_only,
        bad=[
            ("engine/models/x.h", "#include <nlohmann/json.hpp>"),
            ("engine/include/reprise/x.h", "#include <nlohmann/json_fwd.hpp>"),
        ],
        good=[
            ("engine/models/x.cpp", "#include <nlohmann/json.hpp>"),
            ("engine/models/x.h", "#include <nlohmann/json_fwd.hpp>"),
        ],
    ),
    "python_headers_in_caster_only": Checked(
        python_headers_in_caster_only,
        bad=[
            ("bindings/bind_engine.cpp", "#include <pybind11/pybind11.h>"),
            ("bindings/bind_engine.cpp", "#include <torch/csrc/autograd/python_variable.h>"),
            ("engine/runtime/x.cpp", "#include <torch/csrc/utils/pybind.h>"),
        ],
        good=[("bindings/tensor_caster.cpp", "#include <torch/csrc/autograd/python_variable.h>")],
    ),
    "no_owning_pointers": Checked(
        no_owning_pointers,
        bad=[
            ("engine/runtime/x.cpp", "int* p = new int[3];"),
            ("engine/runtime/x.cpp", "  delete p;"),
            ("engine/runtime/x.h", "~X() { delete[] p_; }"),
            ("engine/runtime/x.cpp", "new (self) X();"),
            ("bindings/x.cpp", "return new X();"),
            ("engine/runtime/x.cpp", "return std::unique_ptr<X>(make(new Y(3)));"),
        ],
        good=[
            ("engine/runtime/x.h", "X(const X&) = delete;  // a new one\n/* delete\n new */"),
            ("engine/runtime/x.cpp", 'int new_rows = 1\'000; require("a new prompt");\n#include <new>'),
            ("bindings/x.cpp", "[](X* self) { new (self) X(); }"),
            ("bindings/x.cpp", "new (nb::inst_ptr<T>(self)) T();"),
            ("engine/runtime/x.cpp", "return std::unique_ptr<X>(new X(3));"),
        ],
    ),
    "never_prints_or_aborts": Checked(
        never_prints_or_aborts,
        bad=[
            ("engine/runtime/x.cpp", "std::cout << 1;"),
            ("engine/runtime/x.cpp", "std::cerr << 1;"),
            ("engine/runtime/x.cpp", 'printf("x");'),
            ("engine/runtime/x.cpp", 'fprintf(stderr, "x");'),
            ("engine/runtime/x.cpp", "abort();"),
            ("engine/runtime/x.cpp", "std::exit(1);"),
            ("engine/runtime/x.cpp", 'const char* home = std::getenv("HOME");'),
            ("engine/runtime/x.cpp", 'auto home = getenv("HOME");'),
        ],
        good=[
            ("engine/runtime/x.cpp", '// printf("x")\nthrow std::runtime_error("abort() came");'),
            ("engine/runtime/x.cpp", 'std::snprintf(buffer, sizeof buffer, "x");\nscheduler.abort_all();'),
        ],
    ),
    "no_fast_math": Checked(
        no_fast_math,
        bad=[
            ("engine/CMakeLists.txt", "target_compile_options(x PRIVATE -ffast-math)"),
            ("engine/CMakeLists.txt", "target_compile_options(x PRIVATE -Ofast)"),
            ("engine/backends/x.cpp", '__attribute__((optimize("fast-math"))) void f();'),
        ],
        good=[("engine/CMakeLists.txt", "target_compile_options(x PRIVATE -O3 -ffp-contract=off)")],
    ),
}


def self_test(checked: Checked) -> Iterator[str]:
    for path, text in checked.bad:
        if not list(checked.rule(path, text)):
            yield f"self-test: the rule lets pass {path}: {text!r}"
    for path, text in checked.good:
        for _, problem in checked.rule(path, text):
            yield f"self-test: the rule reports the good {path}: {text!r}: {problem}"


def sources(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    yield root / "CMakeLists.txt"
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"} or path.name == "CMakeLists.txt":
                yield path


def main() -> int:
    name, root = sys.argv[1], Path(sys.argv[2])
    checked = RULES[name]
    problems = list(self_test(checked))
    count = 0
    for path in sources(root, checked.folders):
        count += 1
        relative = path.relative_to(root).as_posix()
        for line, problem in checked.rule(relative, path.read_text()):
            problems.append(f"{relative}:{line}: {problem}")
    if count < 10:
        problems.append(f"only {count} source files under {root}: wrong folder?")
    print("\n".join(problems) if problems else f"{name}: {count} files, {len(checked.bad)} bad snippets reported")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
