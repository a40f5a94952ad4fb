// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/gather_ptx.h"

namespace millrace::kvclient {

// Written by tools/check_ptx.py --write, not by hand: `nvcc -ptx -arch=compute_75 -O3` (13.0) of gather.cu; .version and
// .target are lowered to what drivers of CUDA 11.0 and later accept.
// SHA-256 of gather.cu, page_checksum.cuh: 6419bef39a669cc8dd7c4858d4622aff2149651063a374e108b286229531ea46
const char kGatherPtx[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64
.const .align 8 .b8 _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail7kSecretE[192] =
    {184, 254, 108, 57, 35, 164, 75, 190, 124, 1, 129, 44, 247, 33, 173, 28, 222, 212, 109, 233, 131, 144, 151, 219,
    114, 64, 164, 164, 183, 179, 103, 31, 203, 121, 230, 78, 204, 192, 229, 120, 130, 90, 208, 125, 204, 255, 114,
    33, 184, 8, 70, 116, 247, 67, 36, 142, 224, 53, 144, 230, 129, 58, 38, 76, 60, 40, 82, 187, 145, 195, 0, 203,
    136, 208, 101, 139, 27, 83, 46, 163, 113, 100, 72, 151, 162, 13, 249, 78, 56, 25, 239, 70, 169, 222, 172, 216,
    168, 250, 118, 63, 227, 156, 52, 63, 249, 220, 187, 199, 199, 11, 79, 29, 138, 81, 224, 75, 205, 180, 89, 49,
    200, 159, 126, 201, 217, 120, 115, 100, 234, 197, 172, 131, 52, 211, 235, 195, 197, 129, 160, 255, 250, 19, 99,
    235, 23, 13, 221, 81, 183, 240, 218, 73, 211, 22, 85, 38, 41, 212, 104, 158, 43, 22, 190, 88, 125, 71, 161, 252,
    143, 248, 184, 209, 122, 208, 49, 206, 69, 203, 58, 143, 149, 22, 4, 40, 175, 215, 251, 202, 187, 75, 64, 126};
.const .align 8 .b8 _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail11kLastSecretE[64] =
    {159, 126, 201, 217, 120, 115, 100, 234, 197, 172, 131, 52, 211, 235, 195, 197, 129, 160, 255, 250, 19, 99, 235,
    23, 13, 221, 81, 183, 240, 218, 73, 211, 22, 85, 38, 41, 212, 104, 158, 43, 22, 190, 88, 125, 71, 161, 252, 143,
    248, 184, 209, 122, 208, 49, 206, 69, 203, 58, 143, 149, 22, 4, 40, 175};
.const .align 8 .b8 _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail12kMergeSecretE[64] =
    {44, 247, 33, 173, 28, 222, 212, 109, 233, 131, 144, 151, 219, 114, 64, 164, 164, 183, 179, 103, 31, 203, 121,
    230, 78, 204, 192, 229, 120, 130, 90, 208, 125, 204, 255, 114, 33, 184, 8, 70, 116, 247, 67, 36, 142, 224, 53,
    144, 230, 129, 58, 38, 76, 60, 40, 82, 187, 145, 195, 0, 203, 136, 208, 101};
.const .align 8 .b8 _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail6kFirstE[64] = {61,
    174, 178, 194, 0, 0, 0, 0, 135, 202, 235, 133, 177, 121, 55, 158, 79, 235, 212, 39, 61, 174, 178, 194, 249, 121,
    55, 158, 177, 103, 86, 22, 99, 174, 178, 194, 119, 202, 235, 133, 119, 202, 235, 133, 0, 0, 0, 0, 197, 103, 86,
    22, 47, 235, 212, 39, 177, 121, 55, 158};
.extern .shared .align 16 .b8 data[];
.visible .entry mr_gather(
	.param .u64 mr_gather_param_0,
	.param .u64 mr_gather_param_1,
	.param .u64 mr_gather_param_2,
	.param .u32 mr_gather_param_3,
	.param .u64 mr_gather_param_4
)
{
	.reg .pred 	%p<37>;
	.reg .b16 	%rs<4>;
	.reg .b32 	%r<171>;
	.reg .b64 	%rd<207>;
	.shared .align 1 .u8 _ZZ9mr_gatherE4good;
	ld.param.u64 	%rd43, [mr_gather_param_0];
	ld.param.u64 	%rd46, [mr_gather_param_1];
	ld.param.u64 	%rd44, [mr_gather_param_2];
	ld.param.u32 	%r47, [mr_gather_param_3];
	ld.param.u64 	%rd45, [mr_gather_param_4];
	mov.u32 	%r48, %ctaid.x;
	cvt.u64.u32 	%rd1, %r48;
	cvta.to.global.u64 	%rd47, %rd46;
	mul.wide.u32 	%rd48, %r48, 24;
	add.s64 	%rd2, %rd47, %rd48;
	ld.global.u64 	%rd3, [%rd2+8];
	ld.global.v2.u32 	{%r49, %r50}, [%rd2+16];
	shr.u32 	%r4, %r47, 4;
	mov.u32 	%r5, %tid.x;
	setp.ge.u32 	%p1, %r5, %r4;
	@%p1 bra 	$L__BB0_7;
	ld.global.u64 	%rd49, [%rd2];
	add.s64 	%rd4, %rd43, %rd49;
	not.b32 	%r51, %r5;
	add.s32 	%r6, %r4, %r51;
	shr.u32 	%r52, %r6, 8;
	add.s32 	%r53, %r52, 1;
	and.b32  	%r159, %r53, 7;
	setp.eq.s32 	%p2, %r159, 0;
	mov.u32 	%r160, %r5;
	@%p2 bra 	$L__BB0_4;
	mov.u32 	%r160, %r5;
$L__BB0_3:
	.pragma "nounroll";
	mul.wide.u32 	%rd51, %r160, 16;
	add.s64 	%rd50, %rd4, %rd51;
	ld.global.cg.v4.u32 {%r54,%r55,%r56,%r57}, [%rd50];
	shl.b32 	%r58, %r160, 4;
	mov.u32 	%r59, data;
	add.s32 	%r60, %r59, %r58;
	st.shared.v4.u32 	[%r60], {%r54, %r55, %r56, %r57};
	add.s32 	%r160, %r160, 256;
	add.s32 	%r159, %r159, -1;
	setp.ne.s32 	%p3, %r159, 0;
	@%p3 bra 	$L__BB0_3;
$L__BB0_4:
	setp.lt.u32 	%p4, %r6, 1792;
	@%p4 bra 	$L__BB0_7;
	mov.u32 	%r94, data;
$L__BB0_6:
	.pragma "nounroll";
	mul.wide.u32 	%rd60, %r160, 16;
	add.s64 	%rd52, %rd4, %rd60;
	ld.global.cg.v4.u32 {%r61,%r62,%r63,%r64}, [%rd52];
	shl.b32 	%r93, %r160, 4;
	add.s32 	%r95, %r94, %r93;
	st.shared.v4.u32 	[%r95], {%r61, %r62, %r63, %r64};
	add.s32 	%r96, %r160, 256;
	mul.wide.u32 	%rd61, %r96, 16;
	add.s64 	%rd53, %rd4, %rd61;
	ld.global.cg.v4.u32 {%r65,%r66,%r67,%r68}, [%rd53];
	st.shared.v4.u32 	[%r95+4096], {%r65, %r66, %r67, %r68};
	add.s32 	%r97, %r160, 512;
	mul.wide.u32 	%rd62, %r97, 16;
	add.s64 	%rd54, %rd4, %rd62;
	ld.global.cg.v4.u32 {%r69,%r70,%r71,%r72}, [%rd54];
	st.shared.v4.u32 	[%r95+8192], {%r69, %r70, %r71, %r72};
	add.s32 	%r98, %r160, 768;
	mul.wide.u32 	%rd63, %r98, 16;
	add.s64 	%rd55, %rd4, %rd63;
	ld.global.cg.v4.u32 {%r73,%r74,%r75,%r76}, [%rd55];
	st.shared.v4.u32 	[%r95+12288], {%r73, %r74, %r75, %r76};
	add.s32 	%r99, %r160, 1024;
	mul.wide.u32 	%rd64, %r99, 16;
	add.s64 	%rd56, %rd4, %rd64;
	ld.global.cg.v4.u32 {%r77,%r78,%r79,%r80}, [%rd56];
	st.shared.v4.u32 	[%r95+16384], {%r77, %r78, %r79, %r80};
	add.s32 	%r100, %r160, 1280;
	mul.wide.u32 	%rd65, %r100, 16;
	add.s64 	%rd57, %rd4, %rd65;
	ld.global.cg.v4.u32 {%r81,%r82,%r83,%r84}, [%rd57];
	st.shared.v4.u32 	[%r95+20480], {%r81, %r82, %r83, %r84};
	add.s32 	%r101, %r160, 1536;
	mul.wide.u32 	%rd66, %r101, 16;
	add.s64 	%rd58, %rd4, %rd66;
	ld.global.cg.v4.u32 {%r85,%r86,%r87,%r88}, [%rd58];
	st.shared.v4.u32 	[%r95+24576], {%r85, %r86, %r87, %r88};
	add.s32 	%r102, %r160, 1792;
	mul.wide.u32 	%rd67, %r102, 16;
	add.s64 	%rd59, %rd4, %rd67;
	ld.global.cg.v4.u32 {%r89,%r90,%r91,%r92}, [%rd59];
	st.shared.v4.u32 	[%r95+28672], {%r89, %r90, %r91, %r92};
	add.s32 	%r160, %r160, 2048;
	setp.lt.u32 	%p5, %r160, %r4;
	@%p5 bra 	$L__BB0_6;
$L__BB0_7:
	bar.sync 	0;
	setp.gt.u32 	%p6, %r5, 31;
	@%p6 bra 	$L__BB0_21;
	shr.s32 	%r103, %r47, 31;
	shr.u32 	%r104, %r103, 22;
	add.s32 	%r105, %r47, %r104;
	shr.s32 	%r15, %r105, 10;
	and.b32  	%r16, %r5, 3;
	shl.b32 	%r106, %r5, 1;
	and.b32  	%r17, %r106, 6;
	cvt.u64.u32 	%rd5, %r17;
	mul.wide.s32 	%rd68, %r17, 8;
	mov.u64 	%rd69, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail6kFirstE;
	add.s64 	%rd70, %rd69, %rd68;
	ld.const.u64 	%rd204, [%rd70];
	ld.const.u64 	%rd203, [%rd70+8];
	setp.lt.s32 	%p7, %r47, 1024;
	@%p7 bra 	$L__BB0_19;
	shl.b64 	%rd71, %rd5, 3;
	mov.u64 	%rd72, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail11kLastSecretE;
	add.s64 	%rd73, %rd72, %rd71;
	ld.const.u64 	%rd8, [%rd73];
	ld.const.u64 	%rd9, [%rd73+8];
	mul.wide.u32 	%rd74, %r17, 8;
	mov.u64 	%rd75, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail7kSecretE;
	add.s64 	%rd76, %rd75, %rd74;
	ld.const.u64 	%rd10, [%rd76+128];
	ld.const.u64 	%rd11, [%rd76+136];
	add.s32 	%r18, %r15, -1;
	add.s64 	%rd77, %rd75, %rd71;
	add.s64 	%rd12, %rd77, 16;
	shl.b32 	%r108, %r16, 4;
	mov.u32 	%r109, data;
	add.s32 	%r110, %r109, %r108;
	add.s32 	%r19, %r110, 128;
	and.b32  	%r111, %r5, 31;
	shr.u32 	%r20, %r111, 2;
	mov.u32 	%r162, 0;
$L__BB0_10:
	.pragma "nounroll";
	add.s32 	%r22, %r162, %r20;
	setp.ge.s32 	%p8, %r22, %r15;
	mov.u64 	%rd199, 0;
	mov.u64 	%rd200, %rd199;
	@%p8 bra 	$L__BB0_15;
	shl.b32 	%r114, %r22, 10;
	add.s32 	%r164, %r19, %r114;
	mov.u64 	%rd199, 0;
	mov.u32 	%r165, 768;
	mov.u32 	%r163, -16;
	mov.u64 	%rd194, %rd12;
$L__BB0_12:
	.pragma "nounroll";
	ld.shared.v2.u64 	{%rd82, %rd83}, [%r164+-128];
	ld.const.u64 	%rd86, [%rd194+-16];
	xor.b64  	%rd87, %rd86, %rd82;
	and.b64  	%rd88, %rd87, 4294967295;
	shr.u64 	%rd89, %rd87, 32;
	mul.lo.s64 	%rd90, %rd88, %rd89;
	add.s64 	%rd91, %rd200, %rd83;
	add.s64 	%rd92, %rd91, %rd90;
	ld.const.u64 	%rd93, [%rd194+-8];
	xor.b64  	%rd94, %rd93, %rd83;
	and.b64  	%rd95, %rd94, 4294967295;
	shr.u64 	%rd96, %rd94, 32;
	mul.lo.s64 	%rd97, %rd95, %rd96;
	add.s64 	%rd98, %rd97, %rd82;
	add.s64 	%rd99, %rd98, %rd199;
	ld.shared.v2.u64 	{%rd100, %rd101}, [%r164+-64];
	xor.b64  	%rd104, %rd93, %rd100;
	and.b64  	%rd105, %rd104, 4294967295;
	shr.u64 	%rd106, %rd104, 32;
	mul.lo.s64 	%rd107, %rd105, %rd106;
	add.s64 	%rd108, %rd92, %rd101;
	add.s64 	%rd109, %rd108, %rd107;
	ld.const.u64 	%rd110, [%rd194];
	xor.b64  	%rd111, %rd110, %rd101;
	and.b64  	%rd112, %rd111, 4294967295;
	shr.u64 	%rd113, %rd111, 32;
	mul.lo.s64 	%rd114, %rd112, %rd113;
	add.s64 	%rd115, %rd114, %rd100;
	add.s64 	%rd116, %rd115, %rd99;
	ld.shared.v2.u64 	{%rd117, %rd118}, [%r164];
	xor.b64  	%rd121, %rd110, %rd117;
	and.b64  	%rd122, %rd121, 4294967295;
	shr.u64 	%rd123, %rd121, 32;
	mul.lo.s64 	%rd124, %rd122, %rd123;
	add.s64 	%rd125, %rd109, %rd118;
	add.s64 	%rd19, %rd125, %rd124;
	ld.const.u64 	%rd20, [%rd194+8];
	xor.b64  	%rd126, %rd20, %rd118;
	and.b64  	%rd127, %rd126, 4294967295;
	shr.u64 	%rd128, %rd126, 32;
	mul.lo.s64 	%rd129, %rd127, %rd128;
	add.s64 	%rd130, %rd129, %rd117;
	add.s64 	%rd21, %rd130, %rd116;
	ld.shared.v2.u64 	{%rd131, %rd132}, [%r164+64];
	setp.eq.s32 	%p9, %r163, -4;
	setp.eq.s32 	%p10, %r22, %r18;
	and.pred  	%p11, %p10, %p9;
	mov.u64 	%rd197, %rd8;
	mov.u64 	%rd198, %rd9;
	@%p11 bra 	$L__BB0_14;
	ld.const.u64 	%rd198, [%rd194+16];
	mov.u64 	%rd197, %rd20;
$L__BB0_14:
	xor.b64  	%rd133, %rd197, %rd131;
	and.b64  	%rd134, %rd133, 4294967295;
	shr.u64 	%rd135, %rd133, 32;
	mul.lo.s64 	%rd136, %rd134, %rd135;
	add.s64 	%rd137, %rd19, %rd132;
	add.s64 	%rd200, %rd137, %rd136;
	xor.b64  	%rd138, %rd198, %rd132;
	and.b64  	%rd139, %rd138, 4294967295;
	shr.u64 	%rd140, %rd138, 32;
	mul.lo.s64 	%rd141, %rd139, %rd140;
	add.s64 	%rd142, %rd141, %rd131;
	add.s64 	%rd199, %rd142, %rd21;
	add.s64 	%rd194, %rd194, 32;
	add.s32 	%r164, %r164, 256;
	add.s32 	%r163, %r163, 4;
	add.s32 	%r165, %r165, -256;
	setp.ne.s32 	%p12, %r165, -256;
	@%p12 bra 	$L__BB0_12;
$L__BB0_15:
	setp.ge.s32 	%p13, %r162, %r15;
	@%p13 bra 	$L__BB0_18;
	mov.u32 	%r167, 0;
	mov.u32 	%r166, %r162;
$L__BB0_17:
	.pragma "nounroll";
	shl.b32 	%r124, %r167, 2;
	or.b32  	%r125, %r124, %r16;
	mov.b64 {%r116,%r117}, %rd200;
	mov.u32 	%r126, 31;
	mov.u32 	%r127, -1;
	shfl.sync.idx.b32 	%r119|%p14, %r117, %r125, %r126, %r127;
	shfl.sync.idx.b32 	%r118|%p15, %r116, %r125, %r126, %r127;
	mov.b64 %rd144, {%r118,%r119};
	add.s64 	%rd147, %rd144, %rd204;
	shr.u64 	%rd148, %rd147, 47;
	xor.b64  	%rd149, %rd148, %rd147;
	xor.b64  	%rd150, %rd149, %rd10;
	mul.lo.s64 	%rd151, %rd150, 2654435761;
	setp.eq.s32 	%p16, %r166, %r18;
	selp.b64 	%rd204, %rd147, %rd151, %p16;
	mov.b64 {%r120,%r121}, %rd199;
	shfl.sync.idx.b32 	%r123|%p17, %r121, %r125, %r126, %r127;
	shfl.sync.idx.b32 	%r122|%p18, %r120, %r125, %r126, %r127;
	mov.b64 %rd146, {%r122,%r123};
	add.s64 	%rd152, %rd146, %rd203;
	shr.u64 	%rd153, %rd152, 47;
	xor.b64  	%rd154, %rd153, %rd152;
	xor.b64  	%rd155, %rd154, %rd11;
	mul.lo.s64 	%rd156, %rd155, 2654435761;
	selp.b64 	%rd203, %rd152, %rd156, %p16;
	add.s32 	%r167, %r167, 1;
	setp.lt.u32 	%p19, %r167, 8;
	add.s32 	%r166, %r167, %r162;
	setp.lt.s32 	%p20, %r166, %r15;
	and.pred  	%p21, %p19, %p20;
	@%p21 bra 	$L__BB0_17;
$L__BB0_18:
	add.s32 	%r162, %r162, 8;
	setp.lt.s32 	%p22, %r162, %r15;
	@%p22 bra 	$L__BB0_10;
$L__BB0_19:
	shl.b64 	%rd161, %rd5, 3;
	mov.u64 	%rd162, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail12kMergeSecretE;
	add.s64 	%rd163, %rd162, %rd161;
	ld.const.u64 	%rd164, [%rd163];
	xor.b64  	%rd165, %rd164, %rd204;
	ld.const.u64 	%rd166, [%rd163+8];
	xor.b64  	%rd167, %rd166, %rd203;
	mul.lo.s64 	%rd168, %rd167, %rd165;
	mul.hi.u64 	%rd169, %rd165, %rd167;
	xor.b64  	%rd157, %rd168, %rd169;
	mov.b64 {%r128,%r129}, %rd157;
	mov.u32 	%r136, 31;
	mov.u32 	%r137, 1;
	mov.u32 	%r138, -1;
	shfl.sync.bfly.b32 	%r131|%p23, %r129, %r137, %r136, %r138;
	shfl.sync.bfly.b32 	%r130|%p24, %r128, %r137, %r136, %r138;
	mov.b64 %rd158, {%r130,%r131};
	add.s64 	%rd159, %rd158, %rd157;
	mov.b64 {%r132,%r133}, %rd159;
	mov.u32 	%r139, 2;
	shfl.sync.bfly.b32 	%r135|%p25, %r133, %r139, %r136, %r138;
	shfl.sync.bfly.b32 	%r134|%p26, %r132, %r139, %r136, %r138;
	mov.b64 %rd160, {%r134,%r135};
	cvt.s64.s32 	%rd170, %r15;
	mul.lo.s64 	%rd171, %rd170, -2457058741658706944;
	add.s64 	%rd172, %rd159, %rd171;
	add.s64 	%rd40, %rd172, %rd160;
	setp.ne.s32 	%p27, %r5, 0;
	@%p27 bra 	$L__BB0_21;
	shr.u64 	%rd173, %rd40, 37;
	xor.b64  	%rd174, %rd173, %rd40;
	mul.lo.s64 	%rd175, %rd174, 1609587791953885689;
	shr.u64 	%rd176, %rd175, 32;
	xor.b64  	%rd177, %rd176, %rd175;
	setp.eq.s64 	%p28, %rd177, %rd3;
	selp.u16 	%rs1, 1, 0, %p28;
	st.shared.u8 	[_ZZ9mr_gatherE4good], %rs1;
	selp.u32 	%r140, 1, 0, %p28;
	cvta.to.global.u64 	%rd178, %rd45;
	shl.b64 	%rd179, %rd1, 2;
	add.s64 	%rd180, %rd178, %rd179;
	st.global.u32 	[%rd180], %r140;
$L__BB0_21:
	bar.sync 	0;
	ld.shared.u8 	%rs2, [_ZZ9mr_gatherE4good];
	setp.eq.s16 	%p29, %rs2, 0;
	@%p29 bra 	$L__BB0_32;
	and.b32  	%r35, %r5, 31;
	shr.u32 	%r168, %r5, 5;
	setp.ge.u32 	%p30, %r168, %r50;
	@%p30 bra 	$L__BB0_32;
	shl.b32 	%r37, %r35, 4;
	cvta.to.global.u64 	%rd41, %rd44;
$L__BB0_24:
	.pragma "nounroll";
	add.s32 	%r141, %r168, %r49;
	mul.wide.u32 	%rd181, %r141, 16;
	add.s64 	%rd182, %rd41, %rd181;
	ld.global.v2.u32 	{%r142, %r143}, [%rd182+8];
	cvt.u64.u32 	%rd183, %r142;
	ld.global.u64 	%rd42, [%rd182];
	or.b64  	%rd184, %rd42, %rd183;
	cvt.u64.u32 	%rd185, %r143;
	or.b64  	%rd186, %rd184, %rd185;
	and.b64  	%rd187, %rd186, 15;
	setp.eq.s64 	%p31, %rd187, 0;
	@%p31 bra 	$L__BB0_28;
	setp.ge.u32 	%p32, %r35, %r143;
	@%p32 bra 	$L__BB0_31;
	mov.u32 	%r169, %r35;
$L__BB0_27:
	.pragma "nounroll";
	add.s32 	%r144, %r169, %r142;
	mov.u32 	%r145, data;
	add.s32 	%r146, %r145, %r144;
	ld.shared.u8 	%rs3, [%r146];
	cvt.u64.u32 	%rd188, %r169;
	add.s64 	%rd189, %rd42, %rd188;
	st.u8 	[%rd189], %rs3;
	add.s32 	%r169, %r169, 32;
	setp.lt.u32 	%p33, %r169, %r143;
	@%p33 bra 	$L__BB0_27;
	bra.uni 	$L__BB0_31;
$L__BB0_28:
	setp.ge.u32 	%p34, %r37, %r143;
	@%p34 bra 	$L__BB0_31;
	mov.u32 	%r170, %r37;
$L__BB0_30:
	.pragma "nounroll";
	cvt.u64.u32 	%rd190, %r170;
	add.s64 	%rd191, %rd42, %rd190;
	add.s32 	%r147, %r170, %r142;
	mov.u32 	%r148, data;
	add.s32 	%r149, %r148, %r147;
	ld.shared.v4.u32 	{%r150, %r151, %r152, %r153}, [%r149];
	st.v4.u32 	[%rd191], {%r150, %r151, %r152, %r153};
	add.s32 	%r170, %r170, 512;
	setp.lt.u32 	%p35, %r170, %r143;
	@%p35 bra 	$L__BB0_30;
$L__BB0_31:
	add.s32 	%r168, %r168, 8;
	setp.lt.u32 	%p36, %r168, %r50;
	@%p36 bra 	$L__BB0_24;
$L__BB0_32:
	ret;
}
)ptx";

}  // namespace millrace::kvclient
