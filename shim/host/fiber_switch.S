/* Changing stacks. Declared and explained in fiber.h.
 *
 * A saved stack pointer stands for a whole context: the registers that a called function has to keep lie above it, the
 * return address on top. The last jump of a switch is not a `ret`: the processor would predict the return of another
 * call, wrongly every time. */

#if defined(__APPLE__)
#define SYMBOL(name) _##name
#define BEGIN(name) .globl SYMBOL(name); .private_extern SYMBOL(name); .p2align 4; SYMBOL(name):
#define END(name)
#else
#define SYMBOL(name) name
#define BEGIN(name) .globl name; .hidden name; .type name, %function; .p2align 4; name:
#define END(name) .size name, . - name
#endif

        .text

#if defined(__x86_64__)

.macro SAVE_CONTEXT
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
.endm

BEGIN(host_fiber_switch)
        SAVE_CONTEXT
        movq    %rsp, (%rdi)
        movq    %rsi, %rdi
/* and on into host_fiber_resume */
BEGIN(host_fiber_resume)
        movq    %rdi, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        popq    %rcx
        movl    $1, %eax
        jmpq    *%rcx
END(host_fiber_resume)
END(host_fiber_switch)

BEGIN(host_fiber_start)
        .cfi_startproc
        SAVE_CONTEXT
        movq    %rsp, (%rdi)
        movq    %rsi, %rsp
        .cfi_undefined rip
        xorl    %ebp, %ebp
        callq   *%rdx
        ud2
        .cfi_endproc
END(host_fiber_start)

BEGIN(host_fiber_guard)
        .cfi_startproc
        SAVE_CONTEXT
        .cfi_def_cfa_offset 56
        movq    %rsp, (%rdi)
        movq    %rsi, %rax
        movq    %rdx, %rdi
        movq    %rcx, %rsi
        movq    %r8, %rdx
        subq    $8, %rsp
        .cfi_def_cfa_offset 64
        callq   *%rax
        addq    $8, %rsp
        .cfi_def_cfa_offset 56
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        .cfi_def_cfa_offset 8
        xorl    %eax, %eax
        retq
        .cfi_endproc
END(host_fiber_guard)

#elif defined(__aarch64__)

.macro SAVE_CONTEXT
        sub     sp, sp, #160
        stp     x19, x20, [sp, #0]
        stp     x21, x22, [sp, #16]
        stp     x23, x24, [sp, #32]
        stp     x25, x26, [sp, #48]
        stp     x27, x28, [sp, #64]
        stp     x29, x30, [sp, #80]
        stp     d8, d9, [sp, #96]
        stp     d10, d11, [sp, #112]
        stp     d12, d13, [sp, #128]
        stp     d14, d15, [sp, #144]
        mov     x9, sp
        str     x9, [x0]
.endm

.macro LOAD_CONTEXT
        ldp     x19, x20, [sp, #0]
        ldp     x21, x22, [sp, #16]
        ldp     x23, x24, [sp, #32]
        ldp     x25, x26, [sp, #48]
        ldp     x27, x28, [sp, #64]
        ldp     x29, x30, [sp, #80]
        ldp     d8, d9, [sp, #96]
        ldp     d10, d11, [sp, #112]
        ldp     d12, d13, [sp, #128]
        ldp     d14, d15, [sp, #144]
        add     sp, sp, #160
.endm

BEGIN(host_fiber_switch)
        SAVE_CONTEXT
        mov     x0, x1
/* and on into host_fiber_resume */
BEGIN(host_fiber_resume)
        mov     sp, x0
        LOAD_CONTEXT
        mov     w0, #1
        br      x30
END(host_fiber_resume)
END(host_fiber_switch)

BEGIN(host_fiber_start)
        .cfi_startproc
        SAVE_CONTEXT
        mov     sp, x1
        .cfi_undefined x30
        mov     x29, xzr
        mov     x30, xzr
        blr     x2
        brk     #1
        .cfi_endproc
END(host_fiber_start)

BEGIN(host_fiber_guard)
        .cfi_startproc
        SAVE_CONTEXT
        .cfi_def_cfa_offset 160
        .cfi_offset x29, -80
        .cfi_offset x30, -72
        mov     x9, x1
        mov     x0, x2
        mov     x1, x3
        mov     x2, x4
        blr     x9
        LOAD_CONTEXT
        .cfi_def_cfa_offset 0
        .cfi_restore x29
        .cfi_restore x30
        mov     w0, #0
        ret
        .cfi_endproc
END(host_fiber_guard)

#else
#error "the host device runs kernels on x86-64 and aarch64 only"
#endif

#if defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
