"""Writes the loops over the threads."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..kernels import split_list
from .code import Declarator, Item, NotSplitError, Stride, Variable, keeps_private_pointers
from .uniformity import TYPES, SharedValues

if TYPE_CHECKING:
    from ..kernels import Kernel
    from ..rewrite import Rewriter

_PLAIN = re.compile(
    r"const|metal|unsigned|signed|vec|device|constant|threadgroup|packed_\w+|(?:float|half|bfloat)\dx\d"
)
_WITH_DELTA = re.compile(r".*(?:shuffle|broadcast).*")


class Splitter(SharedValues):
    """Makes loops of one kernel.

    Parameters
    ----------
    rewriter : Rewriter
    kernel : Kernel
    strides : bool
        Whether threads step through memory side by side, which puts what surrounds such loops into regions of its own.

    Raises
    ------
    NotSplitError
    """

    def __init__(self, rewriter: Rewriter, kernel: Kernel, *, strides: bool = True) -> None:
        super().__init__(rewriter, kernel, strides=strides)
        self._keeps_pointers = keeps_private_pointers(self._tokens)
        self._count = 0
        self._lines: list[str] = []
        self._memory = "0"

    def output(self) -> list[str]:
        """Return what takes the place of each token, as `Rewriter.output` does."""
        function = self._kernel.function
        output = list(self._output)
        output[function.head] = f"__attribute__((noinline)) {output[function.head]}"
        first = "const ::mslc::split_group &mslc_given, char *__restrict mslc_scratch"
        output[function.opening] = f"({first}{', ' if self._parameters else ''}"
        for variable, name in zip(self._parameters, self._parameter_tokens, strict=True):
            output[name] = f"{variable.name}_mslc"
        self._emit("const ::mslc::split_group mslc_group = mslc_given;")
        for variable in self._parameters:
            self._begin_parameter(variable)
        self._emit_items(self._items, function.stop - 1)
        self._emit_tail()
        output[function.body : function.stop] = [""] * (function.stop - function.body)
        behind = self._output[function.stop - 1].removeprefix("}")
        output[function.body] = "{ " + "\n".join(self._lines)
        output[function.stop - 1] = "}" + behind
        return output

    @staticmethod
    def expression(text: str) -> str:
        """Return the address of the kernel's function, out of that of the function with the parameters it had."""
        return text.replace("static_cast<void (*)(", "static_cast<void (*)(const ::mslc::split_group &, char *, ", 1)

    def _begin_parameter(self, variable: Variable) -> None:
        if variable.form == "uniform" and variable.is_reference:
            place = f"{variable.name}_mslc"
            self._emit(f"const ::mslc::split_constant<__remove_cvref(decltype({place}))> {place}c({place});")
            variable.place = f"{place}c.value()"
        elif variable.form == "array":
            given = variable.place
            self._declare_array(variable)
            self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {variable.place}[mslc_row + mslc_x] = {given}; }}")

    def _emit(self, line: str) -> None:
        self._lines.append(line)

    def _on_group_level(self, start: int, stop: int, scope: dict[str, Variable]) -> str:
        return self._render(range(start, stop), scope)

    def _bindings(self, ranges: list[tuple[int, int]], scope: dict[str, Variable]) -> str:
        """Declarations, for one thread, of the variables that code mentions."""
        parts = []
        for name, variable in scope.items():
            if not any(self._mentions(name, start, stop) for start, stop in ranges):
                continue
            if variable.form == "array":
                const = "const " if variable.is_const else ""
                parts.append(f"{const}auto &{name} = {variable.place}[mslc_at];")
            elif variable.form == "input":
                value_type = f"__remove_cvref(decltype({variable.place}))"
                value = f"::mslc::split_input<::mslc::{variable.input}, {value_type}>(mslc_group, mslc_thread)"
                parts.append(f"const {value_type} {name} = {value};")
            elif variable.form == "uniform":
                word = "constexpr auto" if variable.is_constexpr else "const auto"
                parts.append(f"{word} {'&' if variable.is_reference else ''}{name} = {variable.place};")
            elif variable.form == "shared" and variable.place != name:
                parts.append(f"auto &{name} = {variable.place};")
        return " ".join(parts)

    def _declare_array(self, variable: Variable, suffix: str = "") -> None:
        self._count += 1
        number = self._count
        variable.form, variable.place = "array", f"{variable.name}_mslc{number}"
        self._declare_per_thread(f"{variable.type_text} {suffix}", variable.place)

    def _declare_per_thread(self, type_text: str, place: str) -> None:
        self._count += 1
        end = f"mslc_end_{self._count}"
        self._emit(f"::mslc::per_thread<{type_text}> {place}(mslc_scratch + {self._memory});")
        self._emit(f"constexpr unsigned long {end} = ::mslc::scratch_end<{type_text}>({self._memory});")
        self._emit(f'static_assert({end} <= MSLC_SCRATCH_BYTES, "too much memory for each thread");')
        self._memory = end

    def _emit_items(self, items: list[Item], stop: int) -> None:
        """Write the items of a block that ends at token `stop`."""
        memory = self._memory
        run: list[Item] = []
        for item in items:
            stride = self._stride(item)
            if stride is None and not self._is_group_level(item):
                run.append(item)
                continue
            self._emit_region(run, stop)
            run = []
            if stride is not None:
                self._emit_stride(item, stride)
            elif item.kind == "collective":
                run.append(self._emit_meetings(item))
            else:
                self._emit_item(item)
        self._emit_region(run, stop)
        if items is not self._items:
            self._memory = memory

    def _emit_stride(self, item: Item, stride: Stride) -> None:
        self._count += 1
        number, kind = self._count, stride.type
        going, round_ = f"mslc_going_{number}", f"mslc_round_{number}"
        bindings = self._bindings([(item.start, item.stop)], item.scope)
        head = f"MSLC_FOR_THREADS(mslc_group) {{ {self._thread()} {bindings}"
        # In the type's own width, and so with what overflows the same.
        value = f"const {kind} {stride.name} = static_cast<{kind}>({self._render(range(*stride.first))} + {round_});"
        memory = self._memory
        self._declare_per_thread("uchar", going)
        self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {going}[mslc_row + mslc_x] = 1; }}")
        step = self._on_group_level(*stride.step, item.scope)
        self._emit(
            f"for ({kind} {round_} = 0;; {round_} = static_cast<{kind}>({round_} + ({step}))) {{ uint mslc_left = 0;"
        )
        condition = self._render(range(*stride.condition))
        self._emit(f"{head} {value} const bool mslc_goes = {going}[mslc_at] && ({condition});")
        self._emit(f"{going}[mslc_at] = mslc_goes; mslc_left += mslc_goes; }}")
        self._emit("if (mslc_left == 0) { break; }")
        body = self._render(range(*stride.body))
        self._emit(f"if (mslc_left == mslc_group.state.count) {{ {head} {value} {{ {body} }} }} }}")
        self._emit(f"else {{ {head} {value} if ({going}[mslc_at]) {{ {body} }} }} }} }}")
        self._memory = memory

    def _emit_region(self, run: list[Item], stop: int) -> None:
        """Write the loop over the threads for some statements of a block that ends at token `stop`."""
        if not run:
            return
        code: list[str] = []
        scope = dict(run[0].scope)
        for item in run:
            if item.kind == "declaration":
                code.append(self._declaration(item, run[-1].stop, stop, scope))
            else:
                code.append(self._render(range(item.start, item.stop)))
        bindings = self._bindings([(item.start, item.stop) for item in run], scope)
        self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {self._thread()} {bindings} {{")
        self._lines += code
        self._emit("} }")

    def _thread(self) -> str:
        return (
            "const ::mslc::thread_state mslc_thread{{mslc_x, mslc_y, mslc_z}, mslc_row + mslc_x}; "
            "const ::mslc::size_t mslc_at = ::mslc::size_t(mslc_row) + mslc_x;"
        )

    def _declaration(self, item: Item, end: int, stop: int, scope: dict[str, Variable]) -> str:
        """Return a declaration's code in a region that ends at token `end`, in a block that ends at `stop`."""
        names = [declarator.variable.name for declarator in item.declarators]
        if not any(self._mentions(name, end, stop) or self._is_pointed_to(name, item.stop, end) for name in names):
            for declarator in item.declarators:
                declarator.variable.form = "local"
            return self._render(range(item.start, item.stop))
        code = ""
        for declarator in item.declarators:
            variable = declarator.variable
            if variable.is_reference or re.search(r"\bauto\b", variable.type_text):
                raise NotSplitError(f"'{variable.name}' is alive across a barrier, and its type is not told")
            if variable.is_private_pointer or (self._keeps_pointers and not self._is_plain(variable.type_text)):
                raise NotSplitError(f"'{variable.name}' is alive across a barrier, and may point to a variable")
            suffix = self._on_group_level(*declarator.suffix, item.scope)
            self._declare_array(variable, suffix)
            scope[variable.name] = variable
            code += self._initialization(declarator, suffix)
        return code

    @staticmethod
    def _is_plain(type_text: str) -> bool:
        """Whether a type is one of the language's numbers and vectors, or a pointer to what all threads see."""
        words = re.findall(r"[A-Za-z_]\w*", type_text)
        return all(word in TYPES or _PLAIN.fullmatch(word) for word in words)

    def _initialization(self, declarator: Declarator, suffix: str) -> str:
        variable = declarator.variable
        target = f"{variable.place}[mslc_at]" if variable.is_const else variable.name
        if declarator.initializer is None:
            return f"{variable.place}.begin({target});"
        value = self._render(range(*declarator.initializer))
        begin = f"{{ {variable.type_text} mslc_initial {suffix} {value}; "
        if suffix:
            return begin + f"__builtin_memcpy(&{target}, &mslc_initial, sizeof mslc_initial); }}"
        return begin + f"{target} = mslc_initial; }}"

    def _emit_item(self, item: Item) -> None:
        """Write an item of the threadgroup's level."""
        if item.kind == "barrier":
            return
        if item.kind == "jump":
            self._emit(self._render(range(item.start, item.stop)))
        elif item.kind == "group":
            self._emit(self._on_group_level(item.start, item.stop, item.scope))
        elif item.kind == "declaration":
            self._emit(self._uniform_declaration(item))
        elif item.kind == "assignment":
            self._emit(self._on_group_level(item.start, item.stop, item.scope))
        else:
            self._emit_control(item)

    def _uniform_declaration(self, item: Item) -> str:
        code = ""
        for declarator in item.declarators:
            variable = declarator.variable
            self._count += 1
            variable.place = f"{variable.name}_mslc{self._count}"
            const = "constexpr " if variable.is_constexpr else "const " if variable.is_const else ""
            assert declarator.initializer is not None
            value = self._on_group_level(*declarator.initializer, item.scope)
            code += f"{const}{variable.type_text} {variable.place} {value}; "
            if variable.type_text == "auto":
                code += f"static_assert(!__is_pointer(decltype({variable.place})));"  # to what, the type does not tell
            code += f"static_assert(!__is_array(decltype({variable.place})));"  # regions would have its address
        return code

    def _emit_control(self, item: Item) -> None:
        assert item.condition is not None or item.kind == "block"
        if item.kind == "for":
            self._emit("{")
            if item.first is not None:
                self._emit_item(item.first)
        condition = self._on_group_level(*item.condition, item.scope) if item.condition else ""
        if item.kind == "for":
            steps = ", ".join(self._on_group_level(step.start, step.stop, step.scope) for step in item.steps)
            self._emit(f"for (; {condition}; {steps}) {{")
        elif item.kind in ("while", "if"):
            word = "if constexpr" if self._text[item.start + 1] == "constexpr" else item.kind
            self._emit(f"{word} ({condition}) {{")
        elif item.kind == "do":
            self._emit("do {")
        else:
            self._emit("{")
        self._emit_items(item.body, item.stop)
        if item.otherwise is not None:
            self._emit("} else {")
            self._emit_items(item.otherwise, item.stop)
        self._emit(f"}} while ({condition});" if item.kind == "do" else "}")
        if item.kind == "for":
            self._emit("}")

    def _emit_meetings(self, item: Item) -> Item:
        """Let the threads of each SIMD-group meet, and return the statement with what that gives to each."""
        for index in reversed(item.collectives):  # those within another's operand come behind it
            self._emit_meeting(index, item.scope)
        return replace(item, kind="declaration" if item.declarators else "plain")

    def _emit_meeting(self, index: int, scope: dict[str, Variable]) -> None:
        name = self._text[index]
        closing = self._tokens.partner[index + 1]
        arguments = split_list(self._tokens, index + 2, closing)
        with_delta = _WITH_DELTA.fullmatch(name) is not None
        if len(arguments) != (2 if with_delta else 1):
            raise NotSplitError(f"'{name}' with {len(arguments)} arguments")
        self._count += 1
        number = self._count
        operand, result = f"mslc_operand_{number}", f"mslc_result_{number}"
        value = self._render(arguments[0])
        delta = self._render(arguments[1]) if with_delta else "0"
        call = f"metal::{name}({value}{f', {delta}' if with_delta else ''})"
        self._emit(f"auto {operand} = [&](const ::mslc::thread_state &mslc_thread) __attribute__((always_inline)) {{")
        self._emit(f"const ::mslc::size_t mslc_at = mslc_thread.index; {self._bindings([(index, closing)], scope)}")
        self._emit(f"using mslc_type = decltype({call});")
        self._emit(f"return ::mslc::split_operand<mslc_type>{{({value}), static_cast<ushort>({delta})}}; }};")
        self._declare_per_thread(f"decltype({operand}(::mslc::thread_state()).value)", result)
        width = 32 if name.startswith("simd") else 4
        self._emit(f"::mslc::split_collective<{width}, ::mslc::split_{name}>(mslc_group, {operand}, {result});")
        start = index - 2 if self._text[index - 2 : index] == ["metal", "::"] else index
        self._output[start : closing + 1] = [""] * (closing + 1 - start)
        self._output[start] = f"{result}[mslc_at]"

    def _emit_tail(self) -> None:
        """Write the statements behind the last meeting: one region, which a thread may leave early."""
        stop = self._kernel.function.stop - 1
        if not any(self._output[index] for index in range(self._tail, stop)):
            return
        self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {self._thread()}")
        self._emit(self._bindings([(self._tail, stop)], self._scope))
        code = self._render(range(self._tail, stop))
        if "return" in self._text[self._tail : stop]:
            self._emit(f"[&]() __attribute__((always_inline)) {{ {code} }}(); }}")
        else:
            self._emit(f"{{ {code} }} }}")
