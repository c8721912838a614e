"""Compares render.py with chat_template.jinja on many conversations: python check_render.py [n]."""

from __future__ import annotations

import json
import random
import sys

import jinja2
import mix
from jinja2.sandbox import ImmutableSandboxedEnvironment
from render import NANO, generation_prompt, turns_text


def main() -> None:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        undefined=jinja2.Undefined,
    )
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent
    )
    template = env.from_string((NANO / "chat_template.jinja").read_text(encoding="utf-8"))
    rng = random.Random(11)
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for i in range(n):
        c = mix.conversation(rng)
        messages, extra = c.chat()
        whole = template.render(messages=messages, add_generation_prompt=False, **extra)
        want = "".join(t for t, _ in turns_text(c))
        if whole != want:
            raise SystemExit(f"conversation {i} differs:\n{whole}\n---\n{want}")
        c.messages = c.messages[:-1]
        messages, extra = c.chat()
        if template.render(
            messages=messages, add_generation_prompt=True, **extra
        ) != generation_prompt(c):
            raise SystemExit(f"generation prompt {i} differs")
    print(f"{n} conversations agree")


if __name__ == "__main__":
    main()
