"""What third_party/set_up.sh decides on machines of other kinds: each is a PATH with stand-ins for apt and the rest."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("bash", "cat", "dirname", "env", "mkdir", "mv", "rm", "sed", "touch")

PYTHON = """#!/bin/bash
[ "$1" = - ] && exec {python} "$@"
echo "{version} {include} {venv} /usr/bin/python{version}"
"""
COMPILER = """#!/bin/bash
source=$(cat)
case "$source" in
  *gtest*) [ -e {machine}/gtest ] || [ -e {checkout}/build/third_party/usr/include/gtest/gtest.h ] ;;
  *) {works} ;;
esac
"""
# Notes its calls; what it brings is then there.
APT_GET = """#!/bin/bash
echo "$*" >>{machine}/apt-get.log
case " $* " in
  *" update "*) {update} ;;
  *" install "*) [ {reachable} = yes ] || {{ echo "E: Unable to locate package" >&2; exit 100; }}
    case "$*" in *g++*) mv {machine}/hidden/c++ {machine}/bin/c++ ;; esac
    case "$*" in *"python3 "*) mv {machine}/hidden/python3 {machine}/bin/python3 ;; esac
    case "$*" in *libgtest-dev*) touch {machine}/gtest ;; esac ;;
  *" download "*) [ {reachable} = yes ] && [[ {lists} = full || "$*" == *Dir::State::lists=* ]] || exit 100
    for package; do case "$package" in lib*|python*) touch $package.deb ;; esac; done ;;
esac
"""
DPKG_DEB = """#!/bin/bash
case "$2" in
  libgtest-dev.deb) file=usr/include/gtest/gtest.h ;;
  libpython3.11-dev.deb) file=usr/include/python3.11/Python.h ;;
  python3-pip-whl.deb) file=usr/share/python-wheels/pip-23.0.1-py3-none-any.whl ;;
esac
mkdir -p "$3/$(dirname $file)" && touch "$3/$file"
"""


@dataclass
class Machine:
    """A machine with everything, root and apt; `lacks` and the other fields say how it differs."""

    folder: Path
    lacks: tuple[str, ...] = ()
    root: bool = True
    apt: bool = True
    reachable: bool = True
    lists: str = "full"
    version: str = "3.11"
    compiler_works: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    def __post_init__(self) -> None:
        bin_folder, hidden = self.folder / "bin", self.folder / "hidden"
        for folder in (bin_folder, hidden, self.checkout / "third_party"):
            folder.mkdir(parents=True)
        for file in ("set_up.sh", "googletest.cmake"):
            shutil.copy(ROOT / "third_party" / file, self.checkout / "third_party" / file)
        for tool in TOOLS:
            (bin_folder / tool).symlink_to(shutil.which(tool) or tool)
        names = {
            "python3": PYTHON.format(
                python=sys.executable,
                version=self.version,
                include="-" if "headers" in self.lacks else "/usr/include",
                venv="-" if "venv" in self.lacks else "venv",
            ),
            "c++": COMPILER.format(
                machine=self.folder, checkout=self.checkout, works="true" if self.compiler_works else "false"
            ),
            "id": f"#!/bin/bash\necho {0 if self.root else 1000}\n",
            "dpkg-query": "#!/bin/bash\nexit 0\n",
        }
        if self.apt:
            names["apt-get"] = APT_GET.format(
                machine=self.folder,
                reachable="yes" if self.reachable else "no",
                update="exit 0" if self.reachable else "exit 100",
                lists=self.lists,
            )
            names["dpkg-deb"] = DPKG_DEB
        for name, text in names.items():
            path = (hidden if name in self.lacks else bin_folder) / name
            path.write_text(text)
            path.chmod(0o755)
        if "googletest" not in self.lacks:
            (self.folder / "gtest").touch()

    def set_up(self, *parts: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.checkout / "third_party/set_up.sh"), *parts],
            env={"PATH": str(self.folder / "bin"), **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def apt_calls(self) -> list[str]:
        """What apt-get was asked for, without its options."""
        log = self.folder / "apt-get.log"
        calls = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [" ".join(word for word in call if word[0] != "-" and "::" not in word) for call in calls]


ALL = ("module", "venv", "tests")


def test_a_machine_with_everything_is_left_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    done = machine.set_up(*ALL)
    assert (done.returncode, done.stderr, machine.apt_calls()) == (0, "", [])
    assert not (machine.checkout / "build").exists()


def test_root_installs_what_is_missing_and_says_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lacks=("python3", "c++", "googletest"))
    done = machine.set_up(*ALL)
    packages = "python3 python3-venv python3-dev g++ libgtest-dev"
    assert done.returncode == 0, done.stderr
    assert machine.apt_calls() == ["update", f"install {packages}"]
    assert done.stderr == f"reprise: installing {packages} (apt-get install)\n"


def test_the_demo_wants_no_googletest(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lacks=("googletest",))
    assert machine.set_up("module", "venv").returncode == 0
    assert machine.apt_calls() == []


@pytest.mark.parametrize("lists", ["full", "empty"])
def test_a_user_unpacks_without_installing(tmp_path: Path, lists: str) -> None:
    machine = Machine(tmp_path, lacks=("googletest", "headers", "venv"), root=False, lists=lists)
    done = machine.set_up(*ALL)
    assert done.returncode == 0, done.stderr
    wanted = "download libpython3.11-dev python3-pip-whl libgtest-dev"
    assert machine.apt_calls() == ([wanted] if lists == "full" else [wanted, "update", wanted])
    assert "unpacking libpython3.11-dev python3-pip-whl libgtest-dev under build/third_party" in done.stderr
    again = machine.set_up(*ALL)  # finds them
    assert (again.returncode, again.stderr) == (0, "")


CANNOT_BE_HAD = {
    "a user without a compiler": (
        {"lacks": ("c++",), "root": False},
        "missing, to be installed by hand: apt-get install g++: a C++ compiler",
    ),
    "root whose apt reaches nothing": (
        {"lacks": ("c++", "googletest"), "reachable": False},
        "apt-get install g++ libgtest-dev: a C++ compiler, GoogleTest 1.12 or newer",
    ),
    "a user whose apt reaches nothing": (
        {"lacks": ("c++", "headers"), "root": False, "reachable": False},
        "apt-get install python3.11-dev g++: the headers of Python 3.11, a C++ compiler",
    ),
    "no apt": (
        {"lacks": ("c++", "headers", "venv"), "apt": False},
        "by hand: the headers of Python 3.11, venv of Python 3.11, a C++ compiler",
    ),
    "an old Python": ({"version": "3.9"}, "Python 3.10 or newer (python3 is 3.9; another one: make PYTHON=/path"),
    "a compiler without C++20": ({"compiler_works": False}, "C++20 and OpenMP (c++ does not; set CXX"),
    "a compiler that is not there": ({"environment": {"CXX": "g++-99"}}, "by hand: the compiler CXX=g++-99"),
    "an interpreter that is not there": ({"environment": {"PYTHON": "python9"}}, "the interpreter python9"),
}


@pytest.mark.parametrize("case", CANNOT_BE_HAD)
def test_what_cannot_be_had_is_said_in_one_line(tmp_path: Path, case: str) -> None:
    options, message = CANNOT_BE_HAD[case]
    done = Machine(tmp_path, **options).set_up(*ALL)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


@pytest.fixture
def archive_server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address and hash of a stand-in for GoogleTest's release archive."""
    folder = tmp_path / "served"
    folder.mkdir()
    with tarfile.open(folder / "v1.tar.gz", "w:gz") as archive:
        for name in ("googletest-1/CMakeLists.txt", "googletest-1/src/all.cc"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0),
        lambda *args: http.server.SimpleHTTPRequestHandler(*args, directory=str(folder)),
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    digest = hashlib.sha256((folder / "v1.tar.gz").read_bytes()).hexdigest()
    yield f"http://127.0.0.1:{server.server_port}/v1.tar.gz", digest
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("hash_holds", [True, False])
def test_without_apt_the_release_archive_is_fetched(
    tmp_path: Path, archive_server: tuple[str, str], hash_holds: bool
) -> None:
    url, digest = archive_server
    machine = Machine(tmp_path / "machine", lacks=("googletest",), apt=False)
    digest = digest if hash_holds else "0" * 64
    recipe = machine.checkout / "third_party/googletest.cmake"
    recipe.write_text(f"    URL {url}\n    URL_HASH SHA256={digest}\n")
    done = machine.set_up(*ALL)
    unpacked = machine.checkout / "build/third_party/googletest"
    assert (done.returncode == 0) == hash_holds, done.stderr
    assert (unpacked / "src/all.cc").exists() == hash_holds
    assert f"fetching {url}" in done.stderr
    if not hash_holds:
        assert f"wanted an archive of SHA-256 {digest}" in done.stderr
        assert done.stderr.splitlines()[-1].endswith("GoogleTest 1.12 or newer")


def test_the_recipe_names_an_archive_that_the_script_finds() -> None:
    """set_up.sh reads URL and hash out of the recipe."""
    recipe = (ROOT / "third_party/googletest.cmake").read_text()
    assert recipe.count("    URL https://") == 1 and recipe.count("    URL_HASH SHA256=") == 1


def test_a_wheel_build_stops_before_it_fetches_anything(tmp_path: Path) -> None:
    """The build backend asks set_up.sh first, with the interpreter that the wheel is for."""
    code = "import wheel_backend; wheel_backend.get_requires_for_build_wheel()"
    pytest.importorskip("scikit_build_core")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "third_party"), "CXX": "g++-99"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "reprise: missing, to be installed by hand: the compiler CXX=g++-99"
