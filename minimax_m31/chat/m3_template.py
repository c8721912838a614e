"""The built-in chat template of MiniMax-M3: used when no checkpoint is at hand, and as a test
oracle.

A checkpoint's own `chat_template.jinja` always wins; with an M3.1 checkpoint this one is never
used.

    document start, system turn (identity, thinking instructions), developer turn (system text,
    tools), turns

Nothing is trimmed and no newline is added around reasoning, content, calls or values. Sent content
is expected in the normalised form of `messages.py` (a thinking block already split off, arguments
as mappings).
"""

from __future__ import annotations

from .marks import NAMESPACE

_SOURCE = """\
{%- set identity = "Your model version is MiniMax-M3, developed by MiniMax. Knowledge cutoff: \
January 2026. \
Founded in early 2022, MiniMax is a global AI foundation model company committed to advancing the \
frontiers of AI \
towards AGI." %}
{%- set thinking_base = "You have a thinking capability that allows you to reason step by step \
before responding. \
When thinking is enabled, wrap your reasoning in <mm:think></mm:think> tags before your response. \
When thinking is \
disabled, begin your response directly after the </mm:think> prefix. When thinking is adaptive, \
decide on your own \
whether to think for the current turn." %}
{%- set mode_lines = {
  "enabled": "Current thinking mode: enabled. You MUST think step by step before every response, \
including after \
receiving function/tool results.",
  "disabled": "Current thinking mode: disabled. Do not output any thinking process.",
  "adaptive": "Current thinking mode: adaptive. You are encouraged to think for complex \
decision-making, multi-step \
reasoning, or when analyzing function/tool results."} %}
{%- set tools_intro = "You may call one or more tools to assist with the user query.
Here are the tools available in JSONSchema format:" %}
{%- set tools_outro = "To call tools, wrap all invocations in a single @<tool_call>@</tool_call> \
block. Parameter \
values containing nested objects or arrays are recursively expanded into XML elements. Example:" %}
{%- set tools_example = '@<tool_call>
@<invoke name="tool-name-1">@<param-1>value-1@</param-1>@<param-2>@<item>@<key-a>val-a@</key-a>\
@<key-b>val-b@</key-b>\
@</item>@</param-2>@</invoke>
@<invoke name="tool-name-2">@<param-1>value-1@</param-1>@</invoke>
@</tool_call>' %}
{%- set mode = thinking_mode if thinking_mode is defined else "adaptive" %}

{%- macro text(content) %}
  {%- if content is string %}
    {{- content }}
  {%- else %}
    {%- for part in content %}
      {%- if part.type == "image" %}{{- "]<]image[>[" }}
      {%- elif part.type == "video" %}{{- "]<]video[>[" }}
      {%- else %}{{- part.text }}
      {%- endif %}
    {%- endfor %}
  {%- endif %}
{%- endmacro %}

{%- macro value(data) %}
  {%- if data is mapping %}
    {%- for key, inner in data.items() if inner is not none %}
      {{- "@<" ~ key ~ ">" }}{{ value(inner) }}{{ "@</" ~ key ~ ">" }}
    {%- endfor %}
  {%- elif data is boolean %}
    {{- "true" if data else "false" }}
  {%- elif data is string or data is number %}
    {{- data }}
  {%- elif data is not none %}
    {%- for inner in data %}
      {{- "@<item>" }}{{ value(inner) }}{{ "@</item>" }}
    {%- endfor %}
  {%- endif %}
{%- endmacro %}

{%- set ns = namespace(first=0, root="", developer="") %}
{%- if messages and messages[0].role == "root" %}
  {%- set ns.root = text(messages[0].content) %}
  {%- set ns.first = 1 %}
{%- endif %}
{%- if messages[ns.first:] and messages[ns.first].role in ("system", "developer") %}
  {%- set ns.developer = text(messages[ns.first].content) %}
  {%- set ns.first = ns.first + 1 %}
{%- endif %}

{{- "]~!b[]~b]system\n" }}{{ ns.root or identity }}
{{- "\n\n<thinking_instructions>\n" }}{{ thinking_base }}{{ "\n" }}
{%- if mode in mode_lines %}{{ mode_lines[mode] }}{{ "\n" }}{% endif %}
{{- "</thinking_instructions>[e~[\n]~b]developer\n" }}
{{- ns.developer or (model_identity if model_identity is defined else "You are a helpful \
assistant.") }}
{%- if tools %}
  {{- "\n\n# Tools\n" }}{{ tools_intro }}{{ "\n\n<tools>\n" }}
  {%- for tool in tools %}
    {{- "<tool>" }}{{ tool.function | tojson(ensure_ascii=False) }}{{ "</tool>\n" }}
  {%- endfor %}
  {{- "</tools>\n\n" }}{{ tools_outro }}{{ "\n\n" }}{{ tools_example }}
{%- endif %}
{{- "[e~[\n" }}

{%- for message in messages[ns.first:] %}
  {%- if message.role == "user" %}
    {{- "]~b]user\n" }}{{ text(message.content) }}{{ "[e~[\n" }}
  {%- elif message.role == "assistant" %}
    {{- "]~b]ai\n" }}
    {%- if message.reasoning_content is string and message.reasoning_content %}
      {{- "<mm:think>" }}{{ message.reasoning_content }}
    {%- endif %}
    {{- "</mm:think>" }}{{ text(message.content) }}
    {%- if message.tool_calls %}
      {{- "@<tool_call>\n" }}
      {%- for call in message.tool_calls %}
        {{- '@<invoke name="' }}{{ call.function.name }}{{ '">' }}{{ \
value(call.function.arguments) }}
        {{- "@</invoke>\n" }}
      {%- endfor %}
      {{- "@</tool_call>" }}
    {%- endif %}
    {{- "[e~[\n" }}
  {%- elif message.role == "tool" %}
    {%- if loop.first or loop.previtem.role != "tool" %}{{ "]~b]tool" }}{% endif %}
    {{- "\n<response>" }}{{ text(message.content) }}{{ "</response>" }}
    {%- if loop.last or loop.nextitem.role != "tool" %}{{ "[e~[\n" }}{% endif %}
  {%- endif %}
{%- endfor %}

{%- if add_generation_prompt %}
  {{- "]~b]ai\n" }}
  {%- if mode == "enabled" %}{{ "<mm:think>" }}
  {%- elif mode == "disabled" %}{{ "</mm:think>" }}
  {%- endif %}
{%- endif %}
"""

M3_TEMPLATE = _SOURCE.replace("@<", NAMESPACE + "<")
