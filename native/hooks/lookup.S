/* dlsym and dlvsym as programs see them. RTLD_NEXT and RTLD_DEFAULT look at the return address, so everything that is
 * not ours must reach the real function by a jump, with the caller's own return address and registers: no C compiler
 * promises that. resolve.c decides; it answers with the function to jump to, or NULL and the value to return.
 * Knows nothing else. Tests: tests/integration/test_native_lookup.py. */

#if defined(__x86_64__)

	.text

/* Names that begin otherwise are never ours: not worth a call. */
	.macro pass_if_foreign real
	movzbl	(%rsi), %eax
	cmpb	$'c', %al
	je	1f
	cmpb	$'n', %al
	je	1f
	cmpb	$'d', %al
	je	1f
	movq	\real(%rip), %rax
	testq	%rax, %rax
	je	1f
	jmp	*%rax
1:
	.endm

/* Entry: rsp = 16 k + 8. Three pushes align it for the call. */
	.macro lookup name, decide, real, caller
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	pass_if_foreign \real
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	movq	24(%rsp), \caller
	call	\decide
	movq	%rdx, %r11
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rax, %rax
	je	2f
	jmp	*%rax
2:
	movq	%r11, %rax
	ret
	.cfi_endproc
	.size	\name, .-\name
	.endm

	.hidden	loader_real
	.hidden	resolve_dlsym
	.hidden	resolve_dlvsym
	lookup dlsym, resolve_dlsym, loader_real, %rdx
	lookup dlvsym, resolve_dlvsym, loader_real+8, %rcx

#elif defined(__aarch64__)

	.text

/* hint #34 is "bti c"; x16 is a register from which a jump to a function is allowed under BTI. */
	.macro lookup name, decide, caller
	.globl	\name
	.type	\name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint	#34
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset 29, -48
	.cfi_offset 30, -40
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	mov	\caller, x30
	bl	\decide
	mov	x16, x0
	mov	x17, x1
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	cbz	x16, 1f
	br	x16
1:
	mov	x0, x17
	ret
	.cfi_endproc
	.size	\name, .-\name
	.endm

	.hidden	resolve_dlsym
	.hidden	resolve_dlvsym
	lookup dlsym, resolve_dlsym, x2
	lookup dlvsym, resolve_dlvsym, x3

#else
#error "the lookup stubs are written for x86-64 and aarch64"
#endif

	.section .note.GNU-stack, "", %progbits
