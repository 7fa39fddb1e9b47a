"""Compiled kernels are stored on disk, loaded without numba, and never used if they may be wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import ottla
from ottla.wire.kernels import loading
from ottla.wire.kernels.calling import CHECKED, INTERPRETED, Kernel
from ottla.wire.kernels.checksum import shift
from ottla.wire.kernels.linking import Image
from ottla.wire.kernels.murmur import hash_key

pytestmark = pytest.mark.skipif(CHECKED or INTERPRETED, reason="numba itself runs the kernels")

ANSWER = 940666796
RUN = """
import sys
from ottla.wire.kernels.checksum import shift
from ottla.wire.kernels.notices import notify_once
notices = []
notify_once(lambda purpose: notices.append("compiling"))
print(shift(1, 5), "numba" in sys.modules or "llvmlite" in sys.modules, len(notices))
"""
TWO_THREADS = """
import threading
from ottla.wire.kernels.checksum import shift
gate = threading.Barrier(2)
def use():
    gate.wait()
    answers.append(shift(1, 5))
answers = []
threads = [threading.Thread(target=use) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*answers)
"""
READ_AND_WRITE = """
import sys
from ottla import Consumer, Producer
from ottla.testing import FakeKafka
from ottla.wire.warm import warm

warm()
with FakeKafka(topics={"t": 2}) as kafka:
    with Producer(kafka.bootstrap) as producer:
        producer.send("t", b"alone", key=b"key").result(30)
        for i in range(100):
            producer.send("t", b"%d" % i, key=b"%d" % i, headers={"a": b"b"})
        producer.send_many("t", [b"%d" % i for i in range(100)])
        producer.flush()
    got = 0
    with Consumer(kafka.bootstrap, group="g", topics="t", start="earliest") as consumer:
        for _ in consumer.records():
            got += 1
            if got == 201:
                break
print(got, sorted({"numba", "llvmlite"} & set(sys.modules)))
"""


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    return run


def _compiles(cache: Path, **environment: str) -> bool:
    """Whether numba was needed to use a kernel."""
    answer, needed, notices = _run(RUN, NUMBA_CACHE_DIR=str(cache), **environment).stdout.split()
    assert int(answer) == ANSWER
    if "NUMBA_BOUNDSCHECK" not in environment:
        assert int(notices) == (needed == "True")  # who waits for the compiler was notified
    return needed == "True"


def test_a_kernel_is_compiled_once_and_again_when_a_part_of_it_has_changed(tmp_path: Path) -> None:
    source = Path(ottla.__file__).parent
    shutil.copytree(source, tmp_path / "ottla", ignore=shutil.ignore_patterns("__pycache__"))
    cache, package = tmp_path / "cache", {"PYTHONPATH": str(tmp_path)}
    assert _compiles(cache, **package)
    assert not _compiles(cache, **package)
    assert len(list(cache.iterdir())) == 1
    with (tmp_path / "ottla/wire/kernels/varint.py").open("a") as part:
        part.write("# another file than the kernel's own\n")
    assert _compiles(cache, **package)
    assert not _compiles(cache, **package)
    assert _compiles(cache, **package, NUMBA_CPU_NAME="x86-64-v2", NUMBA_CPU_FEATURES="")
    assert len(list(cache.glob("shift-*.kernel"))) == 3


def test_kernels_that_check_bounds_are_numbas_own(tmp_path: Path) -> None:
    assert _compiles(tmp_path, NUMBA_BOUNDSCHECK="1")
    assert not list(tmp_path.glob("*.kernel"))
    assert len(list(tmp_path.rglob("checksum.shift*.nbc"))) == 1


def test_with_a_warm_cache_nothing_that_reads_or_writes_imports_numba() -> None:
    _run("from ottla.wire.warm import main; main()")
    assert _run(READ_AND_WRITE).stdout.split(maxsplit=1) == ["201", "[]\n"]


def test_the_interpreter_finds_all_of_a_kernel_at_its_very_end() -> None:
    """Regression: now and then a process ended with a segmentation fault. Here, what is freed is overwritten."""
    code = "import gc, sys; from ottla.wire.kernels.checksum import shift; shift(1, 5); sys.kept = shift._enter"
    assert _run(code, PYTHONMALLOC="malloc", MALLOC_PERTURB_="255").returncode == 0


def test_two_processes_with_two_threads_that_compile_at_once_get_their_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_THREADS]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=200)[0].split() for process in both] == [[str(ANSWER)] * 2] * 2
    assert not _compiles(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_cannot_be_kept_is_reported_by_those_who_fill_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "file")}
    code = "from ottla.wire import warm; warm.warm = lambda: None; warm.main()"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert str(tmp_path / "file") in run.stderr


@pytest.fixture(scope="module")
def image() -> Image:
    """The result of the compiler, made once."""
    shift(1, 5)
    image = loading.stored(_kernel())
    if image is None:
        from ottla.wire.kernels.compiling import compiled

        image = compiled(_kernel())
    return image


def _kernel() -> Kernel:
    """A kernel that was not called yet."""
    assert isinstance(shift, Kernel)
    return Kernel(shift.function, shift.kinds)


class Cache:
    """A cache in a folder, and a compiler that counts."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.folder = folder
        self.compiled = 0
        self._image = image

    def compile(self, kernel: Kernel) -> Image:
        self.compiled += 1
        return self._image

    @property
    def file(self) -> Path:
        (file,) = self.folder.glob("shift-*.kernel")
        return file

    def use(self) -> None:
        assert _kernel()(1, 5) == ANSWER


@pytest.fixture
def cache(tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> Cache:
    made = Cache(tmp_path / "a" / "cache", image)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(made.folder))
    monkeypatch.setitem(sys.modules, "ottla.wire.kernels.compiling", SimpleNamespace(compiled=made.compile))
    return made


def test_what_is_in_the_cache_is_not_compiled(cache: Cache) -> None:
    for _ in range(3):
        cache.use()
    assert cache.compiled == 1
    assert cache.file.stat().st_mode & 0o777 == 0o644
    assert [*cache.folder.iterdir()] == [cache.file]


def _truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def _foreign(file: Path) -> None:
    file.write_bytes(b"\x7fELF" + bytes(1000))


def _a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o644)


def _of_another_kernel(file: Path) -> None:
    assert isinstance(hash_key, Kernel)
    image = loading.stored(_kernel())
    assert image is not None
    loading._store(Kernel(hash_key.function, hash_key.kinds), image)
    (other,) = file.parent.glob("hash_key-*.kernel")
    other.rename(file)


def _writable_by_all(file: Path) -> None:
    file.chmod(0o666)


def _writable_by_a_group(file: Path) -> None:
    file.chmod(0o664)


@pytest.mark.parametrize(
    "damage",
    [_truncated, _empty, _flipped, _foreign, _a_pipe, _of_another_kernel, _writable_by_all, _writable_by_a_group],
    ids=lambda damage: damage.__name__.strip("_"),
)
def test_a_file_that_may_be_wrong_is_replaced(cache: Cache, damage: Callable[[Path], None]) -> None:
    cache.use()
    damage(cache.file)
    cache.use()
    assert cache.compiled == 2
    cache.use()
    assert cache.compiled == 2
    assert cache.file.stat().st_mode & 0o777 == 0o644


def test_a_file_of_another_user_is_not_used(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.use()
    if os.geteuid() == 0:
        os.chown(cache.file, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    cache.use()
    assert cache.compiled == 2


def test_a_folder_into_which_everybody_writes_is_not_used(cache: Cache) -> None:
    cache.folder.mkdir(parents=True)
    cache.folder.chmod(0o777)
    cache.use()
    assert not list(cache.folder.iterdir())
    cache.folder.chmod(0o755)
    cache.use()
    assert cache.file.exists()
    cache.folder.chmod(0o777)
    cache.use()
    assert cache.compiled == 3
    cache.folder.chmod(0o1777)  # like /tmp: files are their owners'
    cache.use()
    assert cache.compiled == 3


def test_where_nothing_can_be_kept_every_process_compiles(cache: Cache) -> None:
    cache.folder.parent.write_bytes(b"")
    cache.use()
    cache.use()
    assert cache.compiled == 2


def test_without_a_chosen_folder_or_a_home_it_lies_beside_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = str(Path(loading.__file__).parent / "__pycache__")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert loading.folders() == [beside, "/some/cache/ottla"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/some/home")
    assert loading.folders() == [beside, "/some/home/.cache/ottla"]
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert loading.folders() == [beside]


def test_where_the_compiler_cannot_be_named_nothing_is_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    loading._compiler.cache_clear()
    monkeypatch.setattr(loading, "find_spec", lambda package: None)
    try:
        cache.use()
        assert not cache.folder.exists()
    finally:
        loading._compiler.cache_clear()


def test_sources_that_were_replaced_since_they_were_imported_are_not_taken_for_those(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an upgrade while a notebook is open: memory has the old ones, or some of both."""
    cache.use()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "sources", lambda: "others")
        cache.use()
        assert cache.compiled == 2
    assert [*cache.folder.iterdir()] == [cache.file]
    cache.use()
    assert cache.compiled == 2
