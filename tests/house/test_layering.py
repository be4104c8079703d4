"""The house keeps its order: who includes whom, what the core never names, how long a file grows.

Checked on the text of the sources, so that a breach is found where it is written.
"""

import ast
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter

import pytest
from support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from circles import circles as circles_of

CSRC = ROOT / "csrc"
NATIVE = sorted(p for p in CSRC.rglob("*") if p.suffix in (".c", ".cpp", ".h"))
PYTHON = sorted(
    p
    for p in (ROOT / "managed").rglob("*.py*")
    if p.suffix in (".py", ".pyi") and p.parent.name != "site"
)
SHARED = sorted((ROOT / "managed").glob("_*.so"))  # modules; the runtime of virtual GPUs is none

# Of each folder of csrc: the folders below it, whose headers it may include; and what is below
# those.
USES = {
    "core": set(),
    "core/trace": {"core"},
    "core/placement": {"core"},
    "core/planner": {"core"},
    "core/residency": {"core"},
    "core/steps": {"core/planner"},
    "core/TOP": {"core/steps"},
    "clock": {"core"},
    "torch": {"core"},
    "torch/threads": {"torch"},
    "torch/facts": {"torch/threads"},
    "torch/devices": {"torch/facts"},
    "torch/tensor": {"torch/devices"},
    "torch/residency": {"torch/tensor", "core/steps"},
    "torch/align": {"torch/residency"},
    "torch/entry": {"torch/align"},
    "torch/door": {"torch/entry"},
    "cuda": {"torch/devices"},
    "sim": {"clock", "torch/devices"},
    "sim/kernels": {"sim"},
    "sim/device": {"sim/kernels"},
    "sim/group": {"sim/device"},
    "virtual_gpu/runtime": set(),
    "virtual_gpu/torch": {"sim/kernels"},
    "python": {"torch", "core/residency", "core/steps"},
}
# The core's files that make, destroy and check what all others work on.
TOP = {"machine.c", "device.c", "handle.c", "check.c"}
# Folders that know of the hook only what stands in these headers.
BRIDGE = {
    "sim": {"bridge.h", "compat.h", "key.h"},
    "cuda": {"cuda_bridge.h", "gil.h"},
    "virtual_gpu": set(),
}

LIBRARIES = {
    "_C": {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"},
    "_sim": {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"},
    "_virtual_gpu": {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"},
    "_cuda": {"libc10.so", "libc10_cuda.so"},
}
SYSTEM = re.compile(r"lib(c|m|gcc_s|stdc\+\+|pthread|asan|tsan|ubsan)\.so|ld-linux")


def without_comments(text):
    """The code alone, line for line; strings stay, since what is said in them counts."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    keep = lambda m: m[0] if m[0][0] in "\"'" else "\n" * m[0].count("\n")  # noqa: E731
    return token.sub(keep, text)


def code(path):
    return without_comments(path.read_text())


def name(path):
    return str(path.relative_to(ROOT))


def includes(path):
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', code(path), re.M)


def tree(path):
    """The folder right below csrc."""
    return path.relative_to(CSRC).parts[0]


def folder(path):
    """The folder of USES that a file belongs to."""
    here = path.parent.relative_to(CSRC).as_posix()
    return "core/TOP" if here == "core" and path.name in TOP else here


def below(here):
    """The folders whose headers a folder may include, itself among them."""
    return {here}.union(*(below(there) for there in USES[here]))


def arrows():
    """(file, header) of each include of a header of the tree."""
    return [
        (path, CSRC / header) for path in NATIVE for kind, header in includes(path) if kind == '"'
    ]


def test_there_is_something_to_check():
    assert {folder(p) for p in NATIVE} == set(USES)
    assert len(arrows()) > 700
    assert PYTHON


def test_includes_name_the_folder():
    assert not [(name(p), header.name) for p, header in arrows() if not header.is_file()]


def against_the_layers(path, header):
    bridge = BRIDGE.get(tree(path), {header.name})
    return folder(header) not in below(folder(path)) or (
        tree(header) == "torch" and tree(path) != "torch" and header.name not in bridge
    )


def test_includes_follow_the_layers():
    found = [(name(p), name(header)) for p, header in arrows() if against_the_layers(p, header)]
    assert not found


def test_an_include_against_the_layers_is_seen():
    hold, api = CSRC / "torch/residency/hold.h", CSRC / "torch/api.h"
    assert against_the_layers(CSRC / "torch/tensor/state.cpp", hold)
    assert against_the_layers(CSRC / "core/residency/evict.c", CSRC / "core/steps/step.h")
    assert against_the_layers(CSRC / "sim/device/moves.cpp", CSRC / "torch/devices/devices.h")
    assert against_the_layers(CSRC / "virtual_gpu/torch/copy.cpp", api)
    assert not against_the_layers(CSRC / "torch/align/values.cpp", hold)


def test_the_layers_have_no_circle_and_no_arrow_too_many():
    assert not circles_of(USES)
    direct = {(folder(p), folder(header)) for p, header in arrows()}
    for here, uses in USES.items():
        users = {of for of in USES if here in below(of)}
        for there in uses:
            without = set().union(*(below(other) for other in uses - {there}))
            assert there not in without, f"{here} reaches {there} by another way"
            needed = {to for of, to in direct if of in users} & below(there)
            assert needed - without, f"nothing includes what {here} has from {there}"


def test_folders_stay_small():
    found = Counter(name(p.parent) for p in NATIVE + PYTHON)
    assert max(found.values()) <= 32, found.most_common(3)


# What a function that csrc/python calls may name outside of guarded(), beside functions of the core
# and of CPython: nothing of this throws.
THROWS_NOTHING = set(
    """Bridge CudaBridge Loan allocator_usage give_back StorageHandle StorageImpl Tensor Warning
    begin_steps change_count close_arenas count_change covers cuda_bridge data each_storage
    empty end_step end_turn
    exchange front get_current_graph_task_id handle_of has_key host_bytes host_waits
    is_meta is_nested on_mode
    is_python_dispatch is_quantized is_storage itemsize learn_steps learns_steps let_leave
    let_end_on_host load lock machine move needs_file now pending pop_front reap_replicas remove_key
    replica_hits reset saved_handle seed_mutex size storage_of storage_offset store
    tls_is_dispatch_key_included tls_set_dispatch_key_included unsafeGetStorageImpl
    unsafeGetTensorImpl unsafe_storage wait_for_change""".split()  # noqa: SIM905
)
GUARDED = re.compile(r"\s*(uint64_t \w+ = 0;\s*)?(return )?(managed::)?guarded\(")
NOT_OURS = re.compile(r"mgd_(?!torch_)|Py|THPVariable_|(if|for|static_cast|reinterpret_cast)$")


def exported():
    """(name, body) of each function that csrc/torch offers to csrc/python."""
    for path in sorted((CSRC / "torch").rglob("*.cpp")):
        text = code(path)
        for found in re.finditer(r"^\w[\w: ]*[ *]+(mgd_torch_\w+)\([^{};]*\)\s*\{", text, re.M):
            depth, end = 1, found.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            yield found[1], text[found.end() : end - 1]


def test_no_exception_of_c_plus_plus_reaches_python():
    bodies = dict(exported())
    assert len(bodies) > 80
    for function, body in bodies.items():
        if GUARDED.match(body):
            continue
        text = re.sub(r'"[^"]*"', "", body)
        calls = re.findall(r"\b(\w+)(?:<[^;{}()]*>)?\(", text)
        named = {n for n in calls + re.findall(r"\b[A-Z][a-z]\w*", text) if not NOT_OURS.match(n)}
        assert named <= THROWS_NOTHING, f"{function} is to be guarded: {named - THROWS_NOTHING}"


# What runs an operator of torch, or takes the lock of a leaf's accumulator. Torch takes the GIL
# under that lock, so a thread that waits for the lock must not have the GIL.
OPERATES = re.compile(
    r"\b(alias_of|cross(?:_\w+)?|copy_values|cut_at_crossings|gradient_edge|grad_accumulator|send_home"
    r"|take_home)\(|\bmove\(t, |\.(to|cpu|clone|detach|alias|copy_)\("
)


def test_no_operator_of_torch_runs_under_the_interpreters_lock():
    operating = {f: body for f, body in exported() if OPERATES.search(body)}
    assert len(operating) >= 5, sorted(operating)
    for function, body in operating.items():
        before = body[: OPERATES.search(body).start()]
        assert "NoGil" in before, f"{function} runs an operator with the GIL"


def test_what_a_fork_must_find_is_made_at_the_start():
    """A child of fork() waits for ever for an object that another thread was making."""
    made_by_attach = {"attach.cpp", "transfer.cpp", "waiting.cpp"}
    names = {p.name: code(p) for p in sorted((CSRC / "torch").rglob("*.cpp"))}
    named = {n for n, text in names.items() if re.search(r"survive_fork<|pthread_atfork\(", text)}
    made = {n for n, text in names.items() if "MadeAtStart " in text}
    assert len(named) > 15
    assert made_by_attach < named
    assert named - made_by_attach == made


FORBIDDEN_IN_CORE = {
    "Python": r"\bPy[A-Z_]\w*|Python\.h",
    "torch": r"\b(?:torch|at|c10)::|<(?:torch|ATen|c10)/",
    "CUDA": r"\bcuda\w*|\bCUDA\w*",
    "output": r"\bf?printf\b|\bv?fprintf\b|\bputs\b|\bputchar\b|\bperror\b|\bstd(?:out|err)\b",
    "ending the process": r"\babort\b|\bexit\b|\b_exit\b|\bassert\b",
    "the environment": r"\b(?:secure_)?getenv\b|\bsetenv\b",
    "time of its own": r"\bclock_gettime\b|\bgettimeofday\b|\btime\s*\(\s*(?:NULL|0)\s*\)",
    "randomness of its own": r"\bs?rand(?:om)?\s*\(",
}


@pytest.mark.parametrize("path", [p for p in NATIVE if tree(p) in ("core", "clock")], ids=name)
@pytest.mark.parametrize("what", FORBIDDEN_IN_CORE)
def test_core_knows_nothing_of(what, path):
    found = re.findall(FORBIDDEN_IN_CORE[what], code(path))
    assert not found, f"the core names {sorted(set(found))}"


C_FILES = {
    room: [p for p in NATIVE if tree(p) == room and p.suffix == ".c"]
    for room in ("core", "clock", "python")
}


def defined_in(path):
    """Names of the functions that a C file offers to others, and of those that it keeps."""
    head = r"^(?!#)(\w[^;={}()]*?)\b(\w+)\([^;{}]*\)\s*\{"
    found = re.findall(head, code(path), re.M)
    own = {function for kind, function in found if kind.startswith("static")}
    return {function for _, function in found} - own, own


def users(paths):
    """Of each C file, the others whose functions it names."""
    owner = {function: p for p in paths for function in defined_in(p)[0]}
    words = {p: set(re.findall(r"\b[a-z]\w+", code(p))) - defined_in(p)[1] for p in paths}
    return {p: {owner[w] for w in words[p] if w in owner} - {p} for p in paths}


def circles(uses):
    """Names of files that use each other, directly or by way of others."""
    return sorted(p.name for circle in circles_of(uses) for p in circle)


# State is at the bottom and creation on top: a file can be read with those below it.
@pytest.mark.parametrize(
    ("room", "bottom", "top"),
    [
        ("core", ["state.c", "policy.c"], "machine.c"),
        ("clock", ["clock_log.c"], "clock.c"),
        ("python", ["state.c"], "module.c"),
    ],
)
def test_files_draw_no_circle(room, bottom, top):
    uses = users(C_FILES[room])
    assert not circles(uses), f"these files of {room} use each other: {circles(uses)}"
    named = {p.name: {q.name for q in there} for p, there in uses.items()}
    assert not any(named[name] for name in bottom)
    assert not [name for name, there in named.items() if top in there]
    assert len([p for p in uses if uses[p]]) > 0.6 * len(uses), "it does not see who uses whom"


def test_headers_include_no_circle():
    headers = [p for p in NATIVE if p.suffix == ".h"]
    uses = {
        p: {CSRC / there for kind, there in includes(p) if kind == '"'} & set(headers)
        for p in headers
    }
    assert not circles(uses)
    assert len([p for p in uses if uses[p]]) > 0.6 * len(uses), "it does not see who includes whom"


MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for p in PYTHON
    if p.suffix == ".py"
}


def imported(path):
    """The modules of managed that a module imports, at once or in a function; not for types."""
    found, left = set(), [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            whole = set() if node.module == "managed" else {node.module}  # _C, __version__
            found |= named & MODULES.keys() or whole
        left += ast.iter_child_nodes(node)
    return {MODULES[m] for m in found if m in MODULES} - {path}


def test_modules_import_no_circle():
    uses = {p: imported(p) for p in MODULES.values()}
    assert not circles(uses)
    assert len([p for p in uses if uses[p]]) > 0.6 * len(uses), "it does not see what is imported"


@pytest.mark.parametrize("path", [p for found in C_FILES.values() for p in found], ids=name)
def test_shared_functions_are_named_after_their_file(path):
    """So that a reader of a call knows where to look, and core.h is a table of contents."""
    named = re.compile(rf"mgd_{path.stem}(_\w+)?|PyInit_\w+")
    assert not [f for f in defined_in(path)[0] if not named.fullmatch(f)]


def test_a_name_of_the_core_means_one_thing():
    kept = [f for p in C_FILES["core"] + C_FILES["clock"] for f in defined_in(p)[1]]
    assert not {f for f in kept if kept.count(f) > 1}


def test_a_circle_is_seen(tmp_path):
    for mine, other in ("ab", "bc", "ca"):
        text = f"int {mine}1(int x) {{\n  return {other}1(x);\n}}\n"
        text += "static int d1(void) { return 0; } /* not d1() of d.c */\n"
        (tmp_path / f"{mine}.c").write_text(text)
    (tmp_path / "d.c").write_text("int d1(void) { return a1(1); }\n")
    paths = sorted(tmp_path.glob("*.c"))
    assert circles(users(paths)) == ["a.c", "b.c", "c.c"]


@pytest.mark.parametrize("path", C_FILES["core"] + C_FILES["clock"], ids=name)
def test_core_has_no_variables_of_its_own(path, tmp_path):
    """Everything hangs from a machine: what is compiled holds code and constants, no data."""
    built = tmp_path / "core.o"
    tool("gcc", "-std=c11", "-DMGD_DEBUG=2", "-fPIC", "-iquote", CSRC, "-c", path, "-o", built)
    sizes = dict(re.findall(r"^(\.[\w.]+)\s+(\d+)", tool("size", "-A", built), re.M))
    writable = {k: v for k, v in sizes.items() if re.match(r"\.(t?data|t?bss)(?!\.rel\.ro)", k)}
    assert all(int(size) == 0 for size in writable.values()), writable


@pytest.mark.parametrize("path", NATIVE, ids=name)
def test_native_files_stay_small(path):
    lines = path.read_text().count("\n")
    limit = 160 if path.suffix == ".h" else 500
    if path.name in ("core.h", "api.h", "internal.h", "types.h", "typed_ops.h"):
        limit = 300  # tables of contents, the core's data, a list of operators
    assert lines <= limit, f"{lines} lines, at most {limit}: split it by idea"


RECUT = [p for p in NATIVE if tree(p) in ("core", "clock", "torch", "python", "cuda")]


@pytest.mark.parametrize("path", RECUT, ids=name)
def test_lines_of_native_files_stay_short(path):
    assert not [line for line in path.read_text().split("\n") if len(line) > 120]


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_modules_stay_small(path):
    lines = path.read_text().count("\n")
    assert lines <= 250, f"{lines} lines, at most 250: split it by idea"


@pytest.mark.parametrize("path", NATIVE, ids=name)
def test_a_file_opens_with_its_contract(path):
    first = path.read_text().splitlines()[0]
    assert re.match(rf"(?:/\*|//) {re.escape(path.name)}: \S", first), first


def function_lengths(path):
    """Lines from the line of a function's opening brace at file level to its closing one."""
    start, lengths = None, []
    for number, line in enumerate(code(path).splitlines()):
        if (
            start is None
            and re.search(r"\)[^;={]*\{\s*$", line)
            and not line.startswith((" ", "}"))
        ):
            start = number
        elif start is not None and line.startswith("}"):
            lengths.append(number - start + 1)
            start = None
    return lengths


@pytest.mark.parametrize("room", ["core", "clock", "python"])
def test_functions_fit_on_a_screen(room):
    lengths = {p: function_lengths(p) for p in NATIVE if tree(p) == room and p.suffix == ".c"}
    long = {name(p): max(found) for p, found in lengths.items() if found and max(found) >= 40}
    assert not long, f"functions of 40 lines and more: {long}"
    every = [n for found in lengths.values() for n in found]
    assert statistics.median(every) < 12


def tool(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", SHARED, ids=lambda p: p.name)
def test_only_the_entry_point_is_exported(path):
    module = path.name.split(".")[0]
    symbols = [line.split()[-1] for line in tool("nm", "-D", "--defined-only", path).splitlines()]
    assert symbols == [f"PyInit_{module}"]


@pytest.mark.parametrize("path", SHARED, ids=lambda p: p.name)
def test_modules_need_only_what_the_torch_of_a_version_has(path):
    """One build serves the CPU and the CUDA wheels, wherever torch is installed: no run path."""
    dynamic = tool("readelf", "-d", path)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    extra = {n for n in needed if not SYSTEM.match(n)} - LIBRARIES[path.name.split(".")[0]]
    assert not extra
    assert not re.search(r"\((?:RPATH|RUNPATH)\)", dynamic)
