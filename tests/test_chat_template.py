"""Chat templates: rendered as Hugging Face renders them, and no template can run away."""

# ruff: noqa: E501 (tables of cases, one a line)
from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from minimax_m31.chat import render
from minimax_m31.chat.budget import Limits
from minimax_m31.chat.template import ChatTemplate, compile_template
from minimax_m31.errors import InvalidRequestError

HI = [{"role": "user", "content": "Hi"}]


def run(source: str, limits: Limits | None = None, **variables: Any) -> str:
    return ChatTemplate(source).render({"messages": HI, **variables}, limits)


def test_environment_of_hugging_face() -> None:
    assert run("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert (
        run("{{ v | tojson }}", v={"b": "<é'&>", "a": [1, None, 2.0]})
        == '{"b": "<é\'&>", "a": [1, null, 2.0]}'
    )
    assert run("{{ v | tojson(ensure_ascii=False) }}", v="–") == '"–"'
    assert run("{{ v | tojson(indent=2) }}", v={"a": 1}) == '{\n  "a": 1\n}'
    assert (
        run("{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}")
        == "13"
    )
    assert (
        run("{% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    )
    assert run("{% generation %}a{{ messages[0].content }}{% endgeneration %}") == "aHi"
    assert run("{{ strftime_now('%Y') }}") == time.strftime("%Y")
    assert run("{{ messages[0]['content'] ~ 1 ~ none }}") == "Hi1None"


def test_loops_keep_their_variables() -> None:
    source = (
        "{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ loop.last }}"
        "{{ loop.nextitem if loop.nextitem is defined }},{% endfor %}"
    )
    assert run(source, xs=["a", "b"]) == "1/2aFalseb,2/2bTrue,"
    assert (
        run("{% for k, v in d.items() if v %}{{ k }}{% else %}none{% endfor %}", d={"a": 0, "b": 1})
        == "b"
    )
    tree = [{"n": 1, "c": [{"n": 2, "c": []}]}]
    source = "{% for t in tree recursive %}<{{ t.n }}{{ loop(t.c) }}>{% endfor %}"
    assert run(source, tree=tree) == "<1<2>>"
    assert run("{% for x in missing %}x{% endfor %}.") == "."
    assert (
        run("{% for x in xs | map('upper') %}{{ loop.length }}{{ x }}{% endfor %}", xs=["a", "b"])
        == "2A2B"
    )


def test_blocks_macros_and_operators_work() -> None:
    assert run("{% set x %}a{{ 1 }}{% endset %}{{ x ~ x }}") == "a1a1"
    assert run("{% set x | upper %}a{{ 'b' }}{% endset %}{{ x }}") == "AB"
    assert (
        run("{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}")
        == "12"
    )
    assert (
        run(
            "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i * 2 ** 2 %}{% endfor %}{{ ns.n }}"
        )
        == "40"
    )
    assert (
        run(
            "{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 'x' * 3 }}{{ '%s-%d' % ('a', 5) }}{{ '{}'.format(7) }}"
        )
        == "ab[1, 2]xxxa-57"
    )
    assert (
        run("{{ 'a,b'.split(',') | join('+') }}{{ 'abc' | replace('b', '') }}{{ ' x '.strip() }}")
        == "a+bacx"
    )
    assert (
        run("{{ ('x', 1)[0] }}{{ {'a': 1}.a }}{{ messages | length }}{{ 3 // 2 }}{{ -1 | abs }}")
        == "x1111"
    )


def test_error_carries_the_words_of_the_template() -> None:
    with pytest.raises(InvalidRequestError, match="Only two roles") as caught:
        render(HI, "{{ raise_exception('Only two roles') }}")
    assert caught.value.param == "chat_template"
    with pytest.raises(InvalidRequestError, match="line 2"):
        render(HI, "\n{% if %}")


HOSTILE = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested_loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
    "static_output": "{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "static_in_macro": "{% macro m() %}{% for a in range(99999) %}" + "x" * 9000 + "{% endfor %}{% endmacro %}{{ m() | length }}",
    "static_in_block": "{% set b %}{% for a in range(99999) %}" + "x" * 9000 + "{% endfor %}{% endset %}",
    "multiply": "{{ 'x' * 10**10 }}",
    "multiply_list": "{{ ([0] * 10**9) | length }}",
    "multiply_reversed": "{{ 10**9 * 'xx' }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "big_integers": "{% set n = namespace(v=10) %}{% for i in range(60) %}{% set n.v = n.v * n.v %}{% endfor %}",
    "doubling_plus": "{% set n = namespace(v='ab') %}{% for i in range(60) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "doubling_tilde": "{% set n = namespace(v='ab') %}{% for i in range(60) %}{% set n.v = n.v ~ n.v %}{% endfor %}",
    "doubling_list": "{% set n = namespace(v=[1]) %}{% for i in range(60) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "doubling_tree": "{% set n = namespace(v=[1]) %}{% for i in range(60) %}{% set n.v = [n.v, n.v] %}{% endfor %}{{ n.v }}",
    "doubling_dict": "{% set n = namespace(v={}) %}{% for i in range(60) %}{% set n.v = {'a': n.v, 'b': n.v} %}{% endfor %}{{ n.v | tojson }}",
    "doubling_namespace": "{% set n = namespace(v=1) %}{% for i in range(60) %}{% set n.v = namespace(a=n.v, b=n.v) %}{% endfor %}{{ n.v }}",
    "doubling_block": "{% set n = namespace(v='ab') %}{% for i in range(60) %}{% set b %}{{ n.v }}{{ n.v }}{% endset %}{% set n.v = b %}{% endfor %}",
    "doubling_macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% else %}xxxxxxxxxxxxxxxx{% endif %}{% endmacro %}{{ f(40) }}",
    "doubling_format": "{% set n = namespace(v='ab') %}{% for i in range(60) %}{% set n.v = '%s%s' % (n.v, n.v) %}{% endfor %}",
    "doubling_str_format": "{% set n = namespace(v='ab') %}{% for i in range(60) %}{% set n.v = '{0}{0}'.format(n.v) %}{% endfor %}",
    "doubling_join": "{% set n = namespace(v='ab') %}{% for i in range(60) %}{% set n.v = [n.v, n.v] | join %}{% endfor %}",
    "doubling_replace": "{% set n = namespace(v='aa') %}{% for i in range(60) %}{% set n.v = n.v | replace('a', 'aa') %}{% endfor %}",
    "doubling_method": "{% set n = namespace(v='aa') %}{% for i in range(60) %}{% set n.v = n.v.replace('a', 'aa') %}{% endfor %}",
    "method_join": "{% set n = namespace(v='aa') %}{% for i in range(60) %}{% set n.v = n.v.join('abc') %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "self_recursion": "{% block a %}{{ self.a() }}{% endblock %}",
    "loop_recursion": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "cyclic": "{% set n = namespace() %}{% set n.a = n %}{{ n }}",
    "center": "{{ 'x' | center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10**9) }}",
    "indent": "{{ ('x\n' * 1000) | indent(100000) }}",
    "indent_text": "{{ ('x\n' * 100000) | indent('y' * 10000) }}",
    "percent_width": "{{ '%1000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (1000000000, 1) }}",
    "format_filter": "{{ '%1000000000d' | format(1) }}",
    "format_width": "{{ '{:1000000000}'.format(1) }}",
    "format_nested_width": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list | length }}",
    "slice": "{{ [1] | slice(10**9) | list | length }}",
    "tojson_indent": "{{ [[[1]]] | tojson(indent=10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "encode": "{{ 'x'.encode() }}",
    "int_of_hex": "{{ ('f' * 4000000) | int(0, 16) }}",
    "sum_lists": "{{ [[1], [2]] | sum(start=[]) }}",
    "cycle_calls": "{% macro g() %}{% endmacro %}{% for i in range(99999) %}{% for j in range(99) %}{{ g() }}{% endfor %}{% endfor %}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "strftime": "{{ strftime_now('%999999999Y') }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "mutation": "{% set _ = messages.append(1) %}",
    "include": "{% include '/etc/passwd' %}",
    "deep_expression": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep_blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "huge_source": "x" * (1 << 21),
    "many_names": "".join("{% set a" + str(i) + " = 'x' * 4000000 ~ " + str(i) + " %}" for i in range(300)),
    "compare_trees": "{% set n = namespace(v=[1], w=[1]) %}{% for i in range(60) %}{% set n.v = [n.v, n.v] %}{% set n.w = [n.w, n.w] %}{% endfor %}{{ n.v == n.w }}",
    "sort_all": "{% for i in range(90000) %}{% set x = ('ba' * 1000000) | sort %}{% endfor %}",
    "cycles": "{% for i in range(90000) %}{% set x = ('ba' * 1000000).upper() %}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_ends_in_an_error(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        run(HOSTILE[name], Limits(seconds=1.0))
    assert caught.value.param == "chat_template"
    assert time.monotonic() - began < 6


def test_format_does_not_reach_attributes() -> None:
    for source in ("{{ '{0.__class__}'.format(1) }}", "{{ '{0[a].__init__}'.format({'a': 1}) }}"):
        assert "class" not in run(source) and "method" not in run(source)


def test_clock_is_looked_at_without_output() -> None:
    source = "{% for i in range(90000) %}{% set x = ('x' * 400000) | upper %}{% endfor %}"
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="longer than|too much text"):
        run(source, Limits(seconds=0.2))
    assert time.monotonic() - began < 3


def test_limits_scale_with_the_input() -> None:
    text = "word " * 1_000_000
    prompt = render([{"role": "user", "content": text}], "{{ messages[0].content }}").prompt
    assert prompt == text
    many = [{"role": "user", "content": f"message number {i}"} for i in range(5_000)]
    assert render(many).prompt.count("]~b]user\n") == 5_000


def test_loops_over_the_input_are_counted() -> None:
    """No call, no output, no range: only the count of the loops themselves can end this."""
    source = (
        "{% for a in xs %}{% for b in xs %}{% for c in xs %}{% for d in xs %}{% endfor %}"
        + "{% endfor %}" * 3
    )
    began = time.monotonic()
    with pytest.raises(InvalidRequestError, match="too many loop iterations"):
        run(source, Limits(iterations=100_000, seconds=1000), xs=list(range(300)))
    with pytest.raises(InvalidRequestError, match="too many loop iterations"):
        run(
            source.replace("in xs", "in xs | map('int')"),
            Limits(iterations=100_000, seconds=1000),
            xs=[1] * 300,
        )
    with pytest.raises(InvalidRequestError, match="longer than"):
        run(source, Limits(iterations=10**12, seconds=0.2), xs=list(range(300)))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("name", ["recursion", "self_recursion", "loop_recursion"])
def test_recursion_ends_by_its_own_limit(name: str) -> None:
    """Not by Python's: a caller may have raised that one, and then the stack would overflow."""
    with pytest.raises(InvalidRequestError, match="nests calls deeper"):
        run(HOSTILE[name])


def test_macros_and_blocks_count_as_written() -> None:
    """Text that is captured, not put out, is limited too: without that it could fill the memory."""
    for source in (
        "{% set b %}{% for x in xs %}{{ big }}{% endfor %}{% endset %}",
        "{% macro m() %}{% for x in xs %}{{ big }}{% endfor %}{% endmacro %}{% set b = m() %}",
        "{% set b %}{% for x in xs %}" + "x" * 50_000 + "{% endfor %}{% endset %}",
    ):
        with pytest.raises(InvalidRequestError, match="writes more than"):
            run(source, Limits(output=100_000), xs=[1] * 1000, big="x" * 50_000)


def test_one_template_in_many_threads() -> None:
    template = compile_template("{% for i in range(2000) %}{{ name }}{% endfor %}")
    results: dict[str, str] = {}

    def work(name: str) -> None:
        results[name] = template.render({"name": name})

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: name * 2000 for name in "abcdefgh"}


def test_lost_message_is_an_error() -> None:
    keep_users = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    conversation = [*HI, {"role": "assistant", "content": "an answer"}]
    with pytest.raises(InvalidRequestError, match="does not hold the text of message 1") as caught:
        render(conversation, keep_users, add_generation_prompt=False)
    assert caught.value.param == "chat_template"


@pytest.mark.filterwarnings("ignore:this chat template changes")
def test_changed_text_is_not_lost() -> None:
    conversation = [{"role": "user", "content": 'say "hi"\n'}]
    for source in (
        "{{ messages[0].content | tojson }}",
        "{{ messages[0].content | upper }}",
        "{{ messages[0].content | trim }}",
    ):
        assert render(conversation, source).prompt
