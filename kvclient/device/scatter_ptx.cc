// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/kernel_ptx.h"

namespace millrace::kvclient {

// Written by tools/check_ptx.py --write, not by hand: `nvcc -ptx -arch=compute_75 -O3` (13.0) of scatter.cu; .version and
// .target are lowered to what drivers of CUDA 11.0 and later accept.
// SHA-256 of scatter.cu: 446e284033695da9782421d419d3a9c73ae797cbd46156ccdaa0574bff30d4b5
const char kScatterPtx[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64
.visible .entry mr_scatter(
	.param .u64 mr_scatter_param_0,
	.param .u64 mr_scatter_param_1,
	.param .u32 mr_scatter_param_2
)
{
	.reg .pred 	%p<10>;
	.reg .b16 	%rs<2>;
	.reg .b32 	%r<54>;
	.reg .b64 	%rd<34>;
	ld.param.u64 	%rd4, [mr_scatter_param_0];
	ld.param.u64 	%rd5, [mr_scatter_param_1];
	ld.param.u32 	%r12, [mr_scatter_param_2];
	cvta.to.global.u64 	%rd1, %rd4;
	mov.u32 	%r13, %ctaid.x;
	shl.b32 	%r14, %r13, 2;
	mov.u32 	%r15, %tid.x;
	shr.u32 	%r16, %r15, 5;
	add.s32 	%r1, %r14, %r16;
	and.b32  	%r52, %r15, 31;
	setp.ge.u32 	%p1, %r1, %r12;
	@%p1 bra 	$L__BB0_9;
	cvta.to.global.u64 	%rd6, %rd5;
	mul.wide.u32 	%rd7, %r1, 16;
	add.s64 	%rd8, %rd6, %rd7;
	ld.global.v2.u32 	{%r17, %r18}, [%rd8+8];
	cvt.u64.u32 	%rd2, %r17;
	add.s64 	%rd9, %rd4, %rd2;
	ld.global.u64 	%rd3, [%rd8];
	cvt.u64.u32 	%rd10, %r18;
	or.b64  	%rd11, %rd10, %rd3;
	or.b64  	%rd12, %rd11, %rd9;
	and.b64  	%rd13, %rd12, 15;
	setp.eq.s64 	%p2, %rd13, 0;
	@%p2 bra 	$L__BB0_4;
	setp.ge.u32 	%p3, %r52, %r18;
	@%p3 bra 	$L__BB0_9;
$L__BB0_3:
	cvt.u64.u32 	%rd14, %r52;
	add.s64 	%rd15, %rd14, %rd2;
	add.s64 	%rd16, %rd1, %rd15;
	ld.global.u8 	%rs1, [%rd16];
	add.s64 	%rd17, %rd3, %rd14;
	st.u8 	[%rd17], %rs1;
	add.s32 	%r52, %r52, 32;
	setp.lt.u32 	%p4, %r52, %r18;
	@%p4 bra 	$L__BB0_3;
	bra.uni 	$L__BB0_9;
$L__BB0_4:
	shl.b32 	%r53, %r52, 4;
	setp.ge.u32 	%p5, %r53, %r18;
	@%p5 bra 	$L__BB0_9;
$L__BB0_5:
	.pragma "nounroll";
	cvt.u64.u32 	%rd18, %r53;
	add.s64 	%rd19, %rd3, %rd18;
	add.s64 	%rd20, %rd18, %rd2;
	add.s64 	%rd21, %rd1, %rd20;
	ld.global.v4.u32 	{%r20, %r21, %r22, %r23}, [%rd21];
	st.v4.u32 	[%rd19], {%r20, %r21, %r22, %r23};
	add.s32 	%r8, %r53, 512;
	setp.ge.u32 	%p6, %r8, %r18;
	@%p6 bra 	$L__BB0_9;
	cvt.u64.u32 	%rd22, %r8;
	add.s64 	%rd23, %rd3, %rd22;
	add.s64 	%rd24, %rd22, %rd2;
	add.s64 	%rd25, %rd1, %rd24;
	ld.global.v4.u32 	{%r28, %r29, %r30, %r31}, [%rd25];
	st.v4.u32 	[%rd23], {%r28, %r29, %r30, %r31};
	add.s32 	%r9, %r53, 1024;
	setp.ge.u32 	%p7, %r9, %r18;
	@%p7 bra 	$L__BB0_9;
	cvt.u64.u32 	%rd26, %r9;
	add.s64 	%rd27, %rd3, %rd26;
	add.s64 	%rd28, %rd26, %rd2;
	add.s64 	%rd29, %rd1, %rd28;
	ld.global.v4.u32 	{%r36, %r37, %r38, %r39}, [%rd29];
	st.v4.u32 	[%rd27], {%r36, %r37, %r38, %r39};
	add.s32 	%r10, %r53, 1536;
	setp.ge.u32 	%p8, %r10, %r18;
	@%p8 bra 	$L__BB0_9;
	cvt.u64.u32 	%rd30, %r10;
	add.s64 	%rd31, %rd3, %rd30;
	add.s64 	%rd32, %rd30, %rd2;
	add.s64 	%rd33, %rd1, %rd32;
	ld.global.v4.u32 	{%r44, %r45, %r46, %r47}, [%rd33];
	st.v4.u32 	[%rd31], {%r44, %r45, %r46, %r47};
	add.s32 	%r53, %r53, 2048;
	setp.lt.u32 	%p9, %r53, %r18;
	@%p9 bra 	$L__BB0_5;
$L__BB0_9:
	ret;
}
)ptx";

}  // namespace millrace::kvclient
