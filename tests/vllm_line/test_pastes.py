"""The forms in which a command line is posted, and the traps in them."""

from __future__ import annotations

import pytest

from kvsim.errors import UserError
from kvsim.vllm_line.pastes import Paste, read_paste
from kvsim.vllm_line.words import mark, shell_statements, shown, unresolved

WORDS = ("Qwen/Qwen3-8B", "-tp", "2")

SAME: dict[str, str] = {
    "plain": "vllm serve Qwen/Qwen3-8B -tp 2",
    "a path": "/opt/venv/bin/vllm serve Qwen/Qwen3-8B -tp 2",
    "a prompt": "$ vllm serve Qwen/Qwen3-8B \\\n> -tp 2",
    "a venv's prompt": "(venv) user@host:~$ vllm serve Qwen/Qwen3-8B -tp 2",
    "redirected": "nohup vllm serve Qwen/Qwen3-8B -tp 2 > log.txt 2>&1 &",
    "piped": "cd /x && vllm serve Qwen/Qwen3-8B -tp 2 2>&1 | tee log",
    "a comment": "# start it\nvllm serve Qwen/Qwen3-8B -tp 2 # two GPUs\n",
    "a backslash with blanks": "vllm serve Qwen/Qwen3-8B \\  \n -tp 2",
    "a dangling backslash": "vllm serve Qwen/Qwen3-8B -tp 2 \\",
    "without backslashes": "vllm serve Qwen/Qwen3-8B\n\n  -tp 2\n",
    "Windows": "vllm serve Qwen/Qwen3-8B \\\r\n -tp 2\r\n",
    "a variable": "MODEL=Qwen/Qwen3-8B\nTP=2\nvllm serve $MODEL -tp ${TP}",
    "a default": "vllm serve ${MODEL:-Qwen/Qwen3-8B} -tp ${TP:-2}",
    "arithmetic": "N=4\nvllm serve Qwen/Qwen3-8B -tp $((N / 2))",
    "words in a variable": 'ARGS="-tp 2"\nvllm serve Qwen/Qwen3-8B $ARGS',
    "an array": 'COMMON=(-tp 2)\nvllm serve Qwen/Qwen3-8B "${COMMON[@]}"',
    "docker": "docker run --rm -it --gpus all -p 8000:8000 -v ~/x:/x --ipc=host vllm/vllm-openai:v0.33.0"
    " Qwen/Qwen3-8B -tp 2",
    "docker with a shell": "docker run --gpus '\"device=0,1\"' --entrypoint /bin/bash vllm/vllm-openai:latest -c"
    ' "vllm serve Qwen/Qwen3-8B -tp 2"',
    "a list": "['vllm', 'serve', 'Qwen/Qwen3-8B', '-tp', '2']",
    "a log": "INFO command: [vllm serve Qwen/Qwen3-8B -tp 2]",
    "compose": "services:\n  a:\n    image: redis\n    command: redis-server --port 1\n  b:\n"
    "    image: vllm/vllm-openai\n    command: >\n      Qwen/Qwen3-8B\n      -tp 2\n",
    "kubernetes": "- name: v\n  command: [vllm, serve]\n  args:\n  - Qwen/Qwen3-8B\n  - -tp\n  - $(TP)\n"
    '  env:\n  - name: TP\n    value: "2"\n',
    "kubernetes with a shell": 'command: ["/bin/sh","-c"]\nargs: ["exec vllm serve Qwen/Qwen3-8B -tp $TP"]\n'
    'env: [{name: TP, value: "2"}]',
    "folded, indented": "        command: >\n          vllm serve Qwen/Qwen3-8B\n          -tp 2\n",
}


@pytest.mark.parametrize("name", SAME)
def test_forms(name: str) -> None:
    """Whatever the form, the words are those that vLLM gets."""
    assert read_paste(SAME[name]).words == WORDS


def test_api_server() -> None:
    """The module of the older images takes its model by a flag, its name is not vLLM's word."""
    found = read_paste("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B")
    assert (found.words, found.serve) == (("--model", "Qwen/Qwen3-8B"), False)


def test_environment() -> None:
    """The server sees what is exported or in front of it, and does not see what is only assigned."""
    found = read_paste("A=1\nexport B=2\nC=3\nexport C\nD=4 vllm serve m")
    assert (found.environment, found.hidden) == ({"B": "2", "C": "3", "D": "4"}, {"A": "1"})
    docker = read_paste("X=1 docker run -e A=1 --env=B=2 vllm/vllm-openai:v0.23.0 m")
    assert (docker.environment, docker.image_tag) == ({"A": "1", "B": "2"}, "0.23.0")
    compose = read_paste("image: vllm/vllm-openai:v0.33.0\ncommand: --model m\nenvironment:\n- A=1\n- B=2")
    assert (compose.environment, compose.image_tag) == ({"A": "1", "B": "2"}, "0.33.0")


def test_unresolved() -> None:
    """A variable that nobody assigned stays one word, and is shown as it was written."""
    words = read_paste('vllm serve m -dp $((A * B)) -tp "$TP" --max-num-seqs $(nproc) --api-key <your key>').words
    assert [unresolved(word) for word in words[2::2]] == [["A", "B"], ["TP"], ["$(nproc)"], ["<your key>"]]
    assert [shown(word) for word in words[2::2]] == ["$A$B", "$TP", "$(nproc)", "<your key>"]
    assert shown(f"x{mark('A')}") == "x$A"


def test_quotes() -> None:
    """Quotes and escapes are bash's; blanks inside them stay."""
    ((statement,), notes) = shell_statements(
        r"""A='p q' ; vllm serve 'it''s' "a \"b\" $A \n" \$A '$A' ${A} $'x\ty' '{"k": 1}' "" end"""
    )
    assert statement.words == (
        "vllm", "serve", "its", 'a "b" p q \\n', "$A", "$A", "p", "q", "x\ty", '{"k": 1}', "", "end",
    )  # fmt: skip
    assert notes == []


def test_lost_quotes() -> None:
    """JSON that stands there without quotes, as in logs, is one word, and a note says so."""
    found = read_paste('vllm serve m --kv-transfer-config {"a": {"b": "}"}, "c": 1} --seed 1')
    assert found.words == ("m", "--kv-transfer-config", '{"a": {"b": "}"}, "c": 1}', "--seed", "1")
    assert found.notes == ("JSON without quotes around it, which bash would break apart, is read as one word",)


def test_log_of_arguments() -> None:
    """The log line of vLLM itself has values as Python writes them."""
    found = read_paste(
        "(APIServer pid=1) INFO 11-30 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'seed': 1,"
        " 'enable_prefix_caching': False, 'enforce_eager': True, 'served_model_name': ['a', 'b'],"
        " 'kv_transfer_config': KVTransferConfig(kv_connector='X', kv_role='kv_both', kv_connector_module_path=None,"
        " kv_connector_extra_config={'n': 1})}\nINFO next line {}"
    )
    assert found.words == (
        "Qwen/Qwen3-8B", "--seed", "1", "--no-enable-prefix-caching", "--enforce-eager", "--served-model-name", "a",
        "b", "--kv-transfer-config",
        '{"kv_connector": "X", "kv_role": "kv_both", "kv_connector_extra_config": {"n": 1}}',
    )  # fmt: skip


WRONG: dict[str, tuple[str, str]] = {
    "empty": (" \n", "is empty, expected a vLLM command line, such as: vllm serve"),
    "another command": ("ls -la", "no vLLM command in it, expected one, such as"),
    "two": ("vllm serve a\nvllm serve b", "2 vLLM commands, expected one: each is a server of its own"),
    "a quote": ("vllm serve 'a", "a quote ' is not closed"),
    "a double quote": ('vllm serve "a', 'a quote " is not closed'),
    "a brace": ('vllm serve m --x {"a"', "a brace { is not closed"),
    "an expansion": ("vllm serve ${A", "${ is not closed"),
    "an array": ("A=(1 2\nvllm serve m", "a bracket ( that opens a bash array is not closed"),
    "no image": ("docker run --rm -e", "docker run without an image"),
    "a cut log": ("non-default args: {'a': }", "expected vLLM's log line up to its closing brace"),
    "two services": (
        "a: {image: vllm/x, command: --model m}\nb: {image: vllm/x, command: --model n}\nargs: []",
        "2 vLLM commands, expected one",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_single_command(name: str) -> None:
    """A text without one vLLM command in it is an error of one line."""
    text, expected = WRONG[name]
    with pytest.raises(UserError, match=r".") as caught:
        read_paste(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_default_is_a_served_line() -> None:
    """A paste that is only flags counts as ``vllm serve``."""
    assert read_paste("... --seed 1 \\\n --max-model-len 5") == Paste(("--seed", "1", "--max-model-len", "5"))


@pytest.mark.parametrize(
    "text",
    [
        "vllm bench serve --model Qwen/Qwen3-8B",
        "docker run --gpus all vllm/vllm-openai:v0.33.0 vllm bench serve --model Qwen/Qwen3-8B",
        "command: vllm bench throughput --model Qwen/Qwen3-8B",
        "['vllm', 'bench', 'serve', '--model', 'Qwen/Qwen3-8B']",
        "bash -c 'vllm bench latency --model Qwen/Qwen3-8B'",
        "python -m vllm.entrypoints.cli.main bench serve --model Qwen/Qwen3-8B",
    ],
)
def test_other_commands_of_vllm(text: str) -> None:
    """Whatever the form, a command of vLLM's that is no server is refused, not read as flags of one."""
    with pytest.raises(UserError, match=r"^vllm bench starts no server, expected a line such as: vllm serve "):
        read_paste(text)


def test_a_benchmark_beside_the_server() -> None:
    """Where a server is started too, it is the one that is meant."""
    paste = read_paste("vllm serve Qwen/Qwen3-8B &\nvllm bench serve --model Qwen/Qwen3-8B")
    assert paste.words == ("Qwen/Qwen3-8B",)
