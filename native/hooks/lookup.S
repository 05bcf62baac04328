/* dlsym and dlvsym as programs see them. RTLD_NEXT and RTLD_DEFAULT use the return address, so everything that is
 * not ours must reach the real function by a jump, with the caller's own return address and registers: no C compiler
 * promises that. resolve.c decides; it answers with the function to jump to, or NULL and the value to return.
 * Uses nothing else. Tests: tests/integration/test_native_lookup.py. */

#if defined(__x86_64__)

	.text

/* Names that begin otherwise than cu[A-Z], nv or dl are never ours: not worth a call. With a handle (neither
 * RTLD_DEFAULT, 0, nor RTLD_NEXT, -1) the caller does not matter to the C library, and C can do the rest. */
	.macro pass_if_foreign real, by_handle
	movzbl	(%rsi), %eax
	cmpb	$'c', %al
	je	1f
	cmpb	$'n', %al
	je	2f
	cmpb	$'d', %al
	je	3f
0:
	movq	\real(%rip), %rax
	testq	%rax, %rax
	je	5f
	jmp	*%rax
1:
	cmpb	$'u', 1(%rsi)
	jne	0b
	movzbl	2(%rsi), %eax
	subl	$'A', %eax
	cmpl	$'Z'-'A', %eax
	ja	0b
	jmp	4f
2:
	cmpb	$'v', 1(%rsi)
	jne	0b
	jmp	4f
3:
	cmpb	$'l', 1(%rsi)
	jne	0b
4:
	leaq	1(%rdi), %rax
	cmpq	$1, %rax
	ja	\by_handle
5:
	.endm

/* Entry: rsp = 16 k + 8. Three pushes align it for the call. */
	.macro lookup name, decide, by_handle, real, caller
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	pass_if_foreign \real, \by_handle
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
	je	6f
	jmp	*%rax
6:
	movq	%r11, %rax
	ret
	.cfi_endproc
	.size	\name, .-\name
	.endm

	.hidden	loader_real
	.hidden	resolve_dlsym
	.hidden	resolve_dlvsym
	.hidden	resolve_by_handle
	.hidden	resolve_version_by_handle
	lookup dlsym, resolve_dlsym, resolve_by_handle, loader_real, %rdx
	lookup dlvsym, resolve_dlvsym, resolve_version_by_handle, loader_real+8, %rcx

#elif defined(__aarch64__)

	.text

/* As above, without reading the name. hint #34 is "bti c"; x16 is a register from which a jump to a function is allowed
 * under BTI. */
	.macro lookup name, decide, by_handle, caller
	.globl	\name
	.type	\name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint	#34
	add	x16, x0, #1
	cmp	x16, #1
	b.ls	2f
	b	\by_handle
2:
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
	.hidden	resolve_by_handle
	.hidden	resolve_version_by_handle
	lookup dlsym, resolve_dlsym, resolve_by_handle, x2
	lookup dlvsym, resolve_dlvsym, resolve_version_by_handle, x3

#else
#error "the lookup stubs are written for x86-64 and aarch64"
#endif

	.section .note.GNU-stack, "", %progbits
