// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/kernel_ptx.h"

namespace millrace::kvclient {

// Written by tools/check_ptx.py --write, not by hand: `nvcc -ptx -arch=compute_75 -O3` (13.0) of gather.cu; .version and
// .target are lowered to what drivers of CUDA 11.0 and later accept.
// SHA-256 of gather.cu, page_checksum.cuh: 0dbd9d986e5fb4346dbf02584a6155b419cbc741ddc838c2c0921402000ff5d4
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
	.reg .pred 	%p<69>;
	.reg .b16 	%rs<4>;
	.reg .b32 	%r<274>;
	.reg .b64 	%rd<313>;
	.shared .align 1 .u8 _ZZ9mr_gatherE4good;
	ld.param.u64 	%rd51, [mr_gather_param_0];
	ld.param.u64 	%rd54, [mr_gather_param_1];
	ld.param.u32 	%r56, [mr_gather_param_3];
	mov.u32 	%r57, %ctaid.x;
	cvta.to.global.u64 	%rd55, %rd54;
	mul.wide.u32 	%rd56, %r57, 24;
	add.s64 	%rd2, %rd55, %rd56;
	ld.global.u64 	%rd3, [%rd2+8];
	ld.global.v2.u32 	{%r58, %r59}, [%rd2+16];
	shr.u32 	%r4, %r56, 4;
	mov.u32 	%r5, %tid.x;
	setp.ge.u32 	%p1, %r5, %r4;
	@%p1 bra 	$L__BB0_7;
	ld.global.u64 	%rd57, [%rd2];
	add.s64 	%rd4, %rd51, %rd57;
	not.b32 	%r60, %r5;
	add.s32 	%r6, %r4, %r60;
	shr.u32 	%r61, %r6, 8;
	add.s32 	%r62, %r61, 1;
	and.b32  	%r258, %r62, 7;
	setp.eq.s32 	%p2, %r258, 0;
	mov.u32 	%r259, %r5;
	@%p2 bra 	$L__BB0_4;
	mov.u32 	%r259, %r5;
$L__BB0_3:
	.pragma "nounroll";
	mul.wide.u32 	%rd59, %r259, 16;
	add.s64 	%rd58, %rd4, %rd59;
	ld.global.cg.v4.u32 {%r63,%r64,%r65,%r66}, [%rd58];
	shl.b32 	%r67, %r259, 4;
	mov.u32 	%r68, data;
	add.s32 	%r69, %r68, %r67;
	st.shared.v4.u32 	[%r69], {%r63, %r64, %r65, %r66};
	add.s32 	%r259, %r259, 256;
	add.s32 	%r258, %r258, -1;
	setp.ne.s32 	%p3, %r258, 0;
	@%p3 bra 	$L__BB0_3;
$L__BB0_4:
	setp.lt.u32 	%p4, %r6, 1792;
	@%p4 bra 	$L__BB0_7;
	mov.u32 	%r103, data;
$L__BB0_6:
	.pragma "nounroll";
	mul.wide.u32 	%rd68, %r259, 16;
	add.s64 	%rd60, %rd4, %rd68;
	ld.global.cg.v4.u32 {%r70,%r71,%r72,%r73}, [%rd60];
	shl.b32 	%r102, %r259, 4;
	add.s32 	%r104, %r103, %r102;
	st.shared.v4.u32 	[%r104], {%r70, %r71, %r72, %r73};
	add.s32 	%r105, %r259, 256;
	mul.wide.u32 	%rd69, %r105, 16;
	add.s64 	%rd61, %rd4, %rd69;
	ld.global.cg.v4.u32 {%r74,%r75,%r76,%r77}, [%rd61];
	st.shared.v4.u32 	[%r104+4096], {%r74, %r75, %r76, %r77};
	add.s32 	%r106, %r259, 512;
	mul.wide.u32 	%rd70, %r106, 16;
	add.s64 	%rd62, %rd4, %rd70;
	ld.global.cg.v4.u32 {%r78,%r79,%r80,%r81}, [%rd62];
	st.shared.v4.u32 	[%r104+8192], {%r78, %r79, %r80, %r81};
	add.s32 	%r107, %r259, 768;
	mul.wide.u32 	%rd71, %r107, 16;
	add.s64 	%rd63, %rd4, %rd71;
	ld.global.cg.v4.u32 {%r82,%r83,%r84,%r85}, [%rd63];
	st.shared.v4.u32 	[%r104+12288], {%r82, %r83, %r84, %r85};
	add.s32 	%r108, %r259, 1024;
	mul.wide.u32 	%rd72, %r108, 16;
	add.s64 	%rd64, %rd4, %rd72;
	ld.global.cg.v4.u32 {%r86,%r87,%r88,%r89}, [%rd64];
	st.shared.v4.u32 	[%r104+16384], {%r86, %r87, %r88, %r89};
	add.s32 	%r109, %r259, 1280;
	mul.wide.u32 	%rd73, %r109, 16;
	add.s64 	%rd65, %rd4, %rd73;
	ld.global.cg.v4.u32 {%r90,%r91,%r92,%r93}, [%rd65];
	st.shared.v4.u32 	[%r104+20480], {%r90, %r91, %r92, %r93};
	add.s32 	%r110, %r259, 1536;
	mul.wide.u32 	%rd74, %r110, 16;
	add.s64 	%rd66, %rd4, %rd74;
	ld.global.cg.v4.u32 {%r94,%r95,%r96,%r97}, [%rd66];
	st.shared.v4.u32 	[%r104+24576], {%r94, %r95, %r96, %r97};
	add.s32 	%r111, %r259, 1792;
	mul.wide.u32 	%rd75, %r111, 16;
	add.s64 	%rd67, %rd4, %rd75;
	ld.global.cg.v4.u32 {%r98,%r99,%r100,%r101}, [%rd67];
	st.shared.v4.u32 	[%r104+28672], {%r98, %r99, %r100, %r101};
	add.s32 	%r259, %r259, 2048;
	setp.lt.u32 	%p5, %r259, %r4;
	@%p5 bra 	$L__BB0_6;
$L__BB0_7:
	bar.sync 	0;
	setp.gt.u32 	%p6, %r5, 31;
	@%p6 bra 	$L__BB0_26;
	shr.s32 	%r112, %r56, 31;
	shr.u32 	%r113, %r112, 22;
	add.s32 	%r114, %r56, %r113;
	shr.s32 	%r15, %r114, 10;
	and.b32  	%r16, %r5, 3;
	shl.b32 	%r115, %r5, 1;
	and.b32  	%r116, %r115, 6;
	cvt.u64.u32 	%rd5, %r116;
	mul.wide.s32 	%rd76, %r116, 8;
	mov.u64 	%rd77, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail7kSecretE;
	add.s64 	%rd78, %rd77, %rd76;
	ld.const.u64 	%rd6, [%rd78+128];
	ld.const.u64 	%rd7, [%rd78+136];
	mov.u64 	%rd79, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail6kFirstE;
	add.s64 	%rd80, %rd79, %rd76;
	ld.const.u64 	%rd310, [%rd80];
	ld.const.u64 	%rd309, [%rd80+8];
	setp.lt.s32 	%p7, %r56, 1024;
	@%p7 bra 	$L__BB0_24;
	shl.b64 	%rd81, %rd5, 3;
	mov.u64 	%rd82, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail11kLastSecretE;
	add.s64 	%rd83, %rd82, %rd81;
	ld.const.u64 	%rd10, [%rd83];
	ld.const.u64 	%rd11, [%rd83+8];
	add.s32 	%r17, %r15, -1;
	mul.wide.u32 	%rd84, %r16, 2;
	shl.b64 	%rd85, %rd84, 3;
	add.s64 	%rd87, %rd77, %rd85;
	add.s64 	%rd12, %rd87, 16;
	shl.b32 	%r120, %r16, 4;
	mov.u32 	%r121, data;
	add.s32 	%r122, %r121, %r120;
	add.s32 	%r18, %r122, 128;
	and.b32  	%r123, %r5, 31;
	shr.u32 	%r19, %r123, 2;
	mov.u32 	%r261, 0;
	mov.u32 	%r262, %r261;
$L__BB0_10:
	.pragma "nounroll";
	sub.s32 	%r124, %r261, %r15;
	max.u32 	%r22, %r124, -8;
	neg.s32 	%r23, %r22;
	add.s32 	%r24, %r262, %r19;
	setp.ge.s32 	%p8, %r24, %r15;
	mov.u64 	%rd303, 0;
	mov.u64 	%rd304, %rd303;
	@%p8 bra 	$L__BB0_15;
	shl.b32 	%r127, %r24, 10;
	add.s32 	%r263, %r18, %r127;
	mov.u64 	%rd303, 0;
	mov.u32 	%r265, 768;
	mov.u32 	%r264, -16;
	mov.u64 	%rd298, %rd12;
$L__BB0_12:
	.pragma "nounroll";
	add.s32 	%r251, %r262, %r19;
	ld.shared.v2.u64 	{%rd92, %rd93}, [%r263+-128];
	ld.const.u64 	%rd96, [%rd298+-16];
	xor.b64  	%rd97, %rd96, %rd92;
	and.b64  	%rd98, %rd97, 4294967295;
	shr.u64 	%rd99, %rd97, 32;
	mul.lo.s64 	%rd100, %rd98, %rd99;
	add.s64 	%rd101, %rd304, %rd93;
	add.s64 	%rd102, %rd101, %rd100;
	ld.const.u64 	%rd103, [%rd298+-8];
	xor.b64  	%rd104, %rd103, %rd93;
	and.b64  	%rd105, %rd104, 4294967295;
	shr.u64 	%rd106, %rd104, 32;
	mul.lo.s64 	%rd107, %rd105, %rd106;
	add.s64 	%rd108, %rd107, %rd92;
	add.s64 	%rd109, %rd108, %rd303;
	ld.shared.v2.u64 	{%rd110, %rd111}, [%r263+-64];
	xor.b64  	%rd114, %rd103, %rd110;
	and.b64  	%rd115, %rd114, 4294967295;
	shr.u64 	%rd116, %rd114, 32;
	mul.lo.s64 	%rd117, %rd115, %rd116;
	add.s64 	%rd118, %rd102, %rd111;
	add.s64 	%rd119, %rd118, %rd117;
	ld.const.u64 	%rd120, [%rd298];
	xor.b64  	%rd121, %rd120, %rd111;
	and.b64  	%rd122, %rd121, 4294967295;
	shr.u64 	%rd123, %rd121, 32;
	mul.lo.s64 	%rd124, %rd122, %rd123;
	add.s64 	%rd125, %rd124, %rd110;
	add.s64 	%rd126, %rd125, %rd109;
	ld.shared.v2.u64 	{%rd127, %rd128}, [%r263];
	xor.b64  	%rd131, %rd120, %rd127;
	and.b64  	%rd132, %rd131, 4294967295;
	shr.u64 	%rd133, %rd131, 32;
	mul.lo.s64 	%rd134, %rd132, %rd133;
	add.s64 	%rd135, %rd119, %rd128;
	add.s64 	%rd19, %rd135, %rd134;
	ld.const.u64 	%rd20, [%rd298+8];
	xor.b64  	%rd136, %rd20, %rd128;
	and.b64  	%rd137, %rd136, 4294967295;
	shr.u64 	%rd138, %rd136, 32;
	mul.lo.s64 	%rd139, %rd137, %rd138;
	add.s64 	%rd140, %rd139, %rd127;
	add.s64 	%rd21, %rd140, %rd126;
	ld.shared.v2.u64 	{%rd141, %rd142}, [%r263+64];
	setp.eq.s32 	%p9, %r264, -4;
	setp.eq.s32 	%p10, %r251, %r17;
	and.pred  	%p11, %p10, %p9;
	mov.u64 	%rd301, %rd10;
	mov.u64 	%rd302, %rd11;
	@%p11 bra 	$L__BB0_14;
	ld.const.u64 	%rd302, [%rd298+16];
	mov.u64 	%rd301, %rd20;
$L__BB0_14:
	xor.b64  	%rd143, %rd301, %rd141;
	and.b64  	%rd144, %rd143, 4294967295;
	shr.u64 	%rd145, %rd143, 32;
	mul.lo.s64 	%rd146, %rd144, %rd145;
	add.s64 	%rd147, %rd19, %rd142;
	add.s64 	%rd304, %rd147, %rd146;
	xor.b64  	%rd148, %rd302, %rd142;
	and.b64  	%rd149, %rd148, 4294967295;
	shr.u64 	%rd150, %rd148, 32;
	mul.lo.s64 	%rd151, %rd149, %rd150;
	add.s64 	%rd152, %rd151, %rd141;
	add.s64 	%rd303, %rd152, %rd21;
	add.s64 	%rd298, %rd298, 32;
	add.s32 	%r264, %r264, 4;
	add.s32 	%r263, %r263, 256;
	add.s32 	%r265, %r265, -256;
	setp.ne.s32 	%p12, %r265, -256;
	@%p12 bra 	$L__BB0_12;
$L__BB0_15:
	setp.ge.s32 	%p13, %r262, %r15;
	@%p13 bra 	$L__BB0_23;
	sub.s32 	%r253, %r261, %r15;
	max.u32 	%r252, %r253, -8;
	and.b32  	%r32, %r23, 3;
	setp.gt.u32 	%p14, %r252, -4;
	mov.u32 	%r270, 0;
	mov.u32 	%r269, %r262;
	@%p14 bra 	$L__BB0_19;
	sub.s32 	%r268, %r23, %r32;
	mov.u32 	%r270, 0;
	mov.u32 	%r269, %r262;
$L__BB0_18:
	shl.b32 	%r162, %r270, 2;
	or.b32  	%r163, %r162, %r16;
	mov.b64 {%r130,%r131}, %rd304;
	mov.u32 	%r164, 31;
	mov.u32 	%r165, -1;
	shfl.sync.idx.b32 	%r133|%p15, %r131, %r163, %r164, %r165;
	shfl.sync.idx.b32 	%r132|%p16, %r130, %r163, %r164, %r165;
	mov.b64 %rd154, {%r132,%r133};
	add.s64 	%rd169, %rd154, %rd310;
	shr.u64 	%rd170, %rd169, 47;
	xor.b64  	%rd171, %rd170, %rd169;
	xor.b64  	%rd172, %rd171, %rd6;
	mul.lo.s64 	%rd173, %rd172, 2654435761;
	setp.eq.s32 	%p17, %r269, %r17;
	selp.b64 	%rd174, %rd169, %rd173, %p17;
	mov.b64 {%r134,%r135}, %rd303;
	shfl.sync.idx.b32 	%r137|%p18, %r135, %r163, %r164, %r165;
	shfl.sync.idx.b32 	%r136|%p19, %r134, %r163, %r164, %r165;
	mov.b64 %rd156, {%r136,%r137};
	add.s64 	%rd175, %rd156, %rd309;
	shr.u64 	%rd176, %rd175, 47;
	xor.b64  	%rd177, %rd176, %rd175;
	xor.b64  	%rd178, %rd177, %rd7;
	mul.lo.s64 	%rd179, %rd178, 2654435761;
	selp.b64 	%rd180, %rd175, %rd179, %p17;
	add.s32 	%r166, %r270, 1;
	add.s32 	%r167, %r166, %r262;
	setp.eq.s32 	%p20, %r167, %r17;
	shl.b32 	%r168, %r166, 2;
	or.b32  	%r169, %r168, %r16;
	mov.b64 {%r138,%r139}, %rd304;
	shfl.sync.idx.b32 	%r141|%p21, %r139, %r169, %r164, %r165;
	shfl.sync.idx.b32 	%r140|%p22, %r138, %r169, %r164, %r165;
	mov.b64 %rd158, {%r140,%r141};
	add.s64 	%rd181, %rd158, %rd174;
	shr.u64 	%rd182, %rd181, 47;
	xor.b64  	%rd183, %rd182, %rd181;
	xor.b64  	%rd184, %rd183, %rd6;
	mul.lo.s64 	%rd185, %rd184, 2654435761;
	selp.b64 	%rd186, %rd181, %rd185, %p20;
	mov.b64 {%r142,%r143}, %rd303;
	shfl.sync.idx.b32 	%r145|%p23, %r143, %r169, %r164, %r165;
	shfl.sync.idx.b32 	%r144|%p24, %r142, %r169, %r164, %r165;
	mov.b64 %rd160, {%r144,%r145};
	add.s64 	%rd187, %rd160, %rd180;
	shr.u64 	%rd188, %rd187, 47;
	xor.b64  	%rd189, %rd188, %rd187;
	xor.b64  	%rd190, %rd189, %rd7;
	mul.lo.s64 	%rd191, %rd190, 2654435761;
	selp.b64 	%rd192, %rd187, %rd191, %p20;
	add.s32 	%r170, %r270, 2;
	add.s32 	%r171, %r170, %r262;
	setp.eq.s32 	%p25, %r171, %r17;
	shl.b32 	%r172, %r170, 2;
	or.b32  	%r173, %r172, %r16;
	mov.b64 {%r146,%r147}, %rd304;
	shfl.sync.idx.b32 	%r149|%p26, %r147, %r173, %r164, %r165;
	shfl.sync.idx.b32 	%r148|%p27, %r146, %r173, %r164, %r165;
	mov.b64 %rd162, {%r148,%r149};
	add.s64 	%rd193, %rd162, %rd186;
	shr.u64 	%rd194, %rd193, 47;
	xor.b64  	%rd195, %rd194, %rd193;
	xor.b64  	%rd196, %rd195, %rd6;
	mul.lo.s64 	%rd197, %rd196, 2654435761;
	selp.b64 	%rd198, %rd193, %rd197, %p25;
	mov.b64 {%r150,%r151}, %rd303;
	shfl.sync.idx.b32 	%r153|%p28, %r151, %r173, %r164, %r165;
	shfl.sync.idx.b32 	%r152|%p29, %r150, %r173, %r164, %r165;
	mov.b64 %rd164, {%r152,%r153};
	add.s64 	%rd199, %rd164, %rd192;
	shr.u64 	%rd200, %rd199, 47;
	xor.b64  	%rd201, %rd200, %rd199;
	xor.b64  	%rd202, %rd201, %rd7;
	mul.lo.s64 	%rd203, %rd202, 2654435761;
	selp.b64 	%rd204, %rd199, %rd203, %p25;
	add.s32 	%r174, %r270, 3;
	add.s32 	%r175, %r174, %r262;
	setp.eq.s32 	%p30, %r175, %r17;
	shl.b32 	%r176, %r174, 2;
	or.b32  	%r177, %r176, %r16;
	mov.b64 {%r154,%r155}, %rd304;
	shfl.sync.idx.b32 	%r157|%p31, %r155, %r177, %r164, %r165;
	shfl.sync.idx.b32 	%r156|%p32, %r154, %r177, %r164, %r165;
	mov.b64 %rd166, {%r156,%r157};
	add.s64 	%rd205, %rd166, %rd198;
	shr.u64 	%rd206, %rd205, 47;
	xor.b64  	%rd207, %rd206, %rd205;
	xor.b64  	%rd208, %rd207, %rd6;
	mul.lo.s64 	%rd209, %rd208, 2654435761;
	selp.b64 	%rd310, %rd205, %rd209, %p30;
	mov.b64 {%r158,%r159}, %rd303;
	shfl.sync.idx.b32 	%r161|%p33, %r159, %r177, %r164, %r165;
	shfl.sync.idx.b32 	%r160|%p34, %r158, %r177, %r164, %r165;
	mov.b64 %rd168, {%r160,%r161};
	add.s64 	%rd210, %rd168, %rd204;
	shr.u64 	%rd211, %rd210, 47;
	xor.b64  	%rd212, %rd211, %rd210;
	xor.b64  	%rd213, %rd212, %rd7;
	mul.lo.s64 	%rd214, %rd213, 2654435761;
	selp.b64 	%rd309, %rd210, %rd214, %p30;
	add.s32 	%r270, %r270, 4;
	add.s32 	%r269, %r270, %r262;
	add.s32 	%r268, %r268, -4;
	setp.ne.s32 	%p35, %r268, 0;
	@%p35 bra 	$L__BB0_18;
$L__BB0_19:
	setp.eq.s32 	%p36, %r32, 0;
	@%p36 bra 	$L__BB0_23;
	setp.eq.s32 	%p37, %r269, %r17;
	shl.b32 	%r186, %r270, 2;
	or.b32  	%r187, %r186, %r16;
	mov.b64 {%r178,%r179}, %rd304;
	mov.u32 	%r188, 31;
	mov.u32 	%r189, -1;
	shfl.sync.idx.b32 	%r181|%p38, %r179, %r187, %r188, %r189;
	shfl.sync.idx.b32 	%r180|%p39, %r178, %r187, %r188, %r189;
	mov.b64 %rd216, {%r180,%r181};
	add.s64 	%rd219, %rd216, %rd310;
	shr.u64 	%rd220, %rd219, 47;
	xor.b64  	%rd221, %rd220, %rd219;
	xor.b64  	%rd222, %rd221, %rd6;
	mul.lo.s64 	%rd223, %rd222, 2654435761;
	selp.b64 	%rd310, %rd219, %rd223, %p37;
	mov.b64 {%r182,%r183}, %rd303;
	shfl.sync.idx.b32 	%r185|%p40, %r183, %r187, %r188, %r189;
	shfl.sync.idx.b32 	%r184|%p41, %r182, %r187, %r188, %r189;
	mov.b64 %rd218, {%r184,%r185};
	add.s64 	%rd224, %rd218, %rd309;
	shr.u64 	%rd225, %rd224, 47;
	xor.b64  	%rd226, %rd225, %rd224;
	xor.b64  	%rd227, %rd226, %rd7;
	mul.lo.s64 	%rd228, %rd227, 2654435761;
	selp.b64 	%rd309, %rd224, %rd228, %p37;
	setp.eq.s32 	%p42, %r32, 1;
	@%p42 bra 	$L__BB0_23;
	add.s32 	%r198, %r270, 1;
	add.s32 	%r199, %r198, %r262;
	setp.eq.s32 	%p43, %r199, %r17;
	shl.b32 	%r200, %r198, 2;
	or.b32  	%r201, %r200, %r16;
	mov.b64 {%r190,%r191}, %rd304;
	shfl.sync.idx.b32 	%r193|%p44, %r191, %r201, %r188, %r189;
	shfl.sync.idx.b32 	%r192|%p45, %r190, %r201, %r188, %r189;
	mov.b64 %rd230, {%r192,%r193};
	add.s64 	%rd233, %rd230, %rd310;
	shr.u64 	%rd234, %rd233, 47;
	xor.b64  	%rd235, %rd234, %rd233;
	xor.b64  	%rd236, %rd235, %rd6;
	mul.lo.s64 	%rd237, %rd236, 2654435761;
	selp.b64 	%rd310, %rd233, %rd237, %p43;
	mov.b64 {%r194,%r195}, %rd303;
	shfl.sync.idx.b32 	%r197|%p46, %r195, %r201, %r188, %r189;
	shfl.sync.idx.b32 	%r196|%p47, %r194, %r201, %r188, %r189;
	mov.b64 %rd232, {%r196,%r197};
	add.s64 	%rd238, %rd232, %rd309;
	shr.u64 	%rd239, %rd238, 47;
	xor.b64  	%rd240, %rd239, %rd238;
	xor.b64  	%rd241, %rd240, %rd7;
	mul.lo.s64 	%rd242, %rd241, 2654435761;
	selp.b64 	%rd309, %rd238, %rd242, %p43;
	setp.eq.s32 	%p48, %r32, 2;
	@%p48 bra 	$L__BB0_23;
	add.s32 	%r212, %r270, 2;
	add.s32 	%r213, %r212, %r262;
	setp.eq.s32 	%p49, %r213, %r17;
	shl.b32 	%r214, %r212, 2;
	or.b32  	%r215, %r214, %r16;
	mov.b64 {%r204,%r205}, %rd304;
	mov.u32 	%r216, 31;
	mov.u32 	%r217, -1;
	shfl.sync.idx.b32 	%r207|%p50, %r205, %r215, %r216, %r217;
	shfl.sync.idx.b32 	%r206|%p51, %r204, %r215, %r216, %r217;
	mov.b64 %rd244, {%r206,%r207};
	add.s64 	%rd247, %rd244, %rd310;
	shr.u64 	%rd248, %rd247, 47;
	xor.b64  	%rd249, %rd248, %rd247;
	xor.b64  	%rd250, %rd249, %rd6;
	mul.lo.s64 	%rd251, %rd250, 2654435761;
	selp.b64 	%rd310, %rd247, %rd251, %p49;
	mov.b64 {%r208,%r209}, %rd303;
	shfl.sync.idx.b32 	%r211|%p52, %r209, %r215, %r216, %r217;
	shfl.sync.idx.b32 	%r210|%p53, %r208, %r215, %r216, %r217;
	mov.b64 %rd246, {%r210,%r211};
	add.s64 	%rd252, %rd246, %rd309;
	shr.u64 	%rd253, %rd252, 47;
	xor.b64  	%rd254, %rd253, %rd252;
	xor.b64  	%rd255, %rd254, %rd7;
	mul.lo.s64 	%rd256, %rd255, 2654435761;
	selp.b64 	%rd309, %rd252, %rd256, %p49;
$L__BB0_23:
	add.s32 	%r262, %r262, 8;
	setp.lt.s32 	%p54, %r262, %r15;
	add.s32 	%r261, %r261, 8;
	@%p54 bra 	$L__BB0_10;
$L__BB0_24:
	mov.u32 	%r256, %tid.x;
	shl.b32 	%r255, %r256, 1;
	and.b32  	%r254, %r255, 6;
	cvt.u64.u32 	%rd295, %r254;
	mov.u32 	%r248, %tid.x;
	shl.b64 	%rd261, %rd295, 3;
	mov.u64 	%rd262, _ZN39_INTERNAL_00000000_9_gather_cu_c5763e508millrace20page_checksum_detail12kMergeSecretE;
	add.s64 	%rd263, %rd262, %rd261;
	ld.const.u64 	%rd264, [%rd263];
	xor.b64  	%rd265, %rd264, %rd310;
	ld.const.u64 	%rd266, [%rd263+8];
	xor.b64  	%rd267, %rd266, %rd309;
	mul.lo.s64 	%rd268, %rd267, %rd265;
	mul.hi.u64 	%rd269, %rd265, %rd267;
	xor.b64  	%rd257, %rd268, %rd269;
	mov.b64 {%r218,%r219}, %rd257;
	mov.u32 	%r226, 31;
	mov.u32 	%r227, 1;
	mov.u32 	%r228, -1;
	shfl.sync.bfly.b32 	%r221|%p55, %r219, %r227, %r226, %r228;
	shfl.sync.bfly.b32 	%r220|%p56, %r218, %r227, %r226, %r228;
	mov.b64 %rd258, {%r220,%r221};
	add.s64 	%rd259, %rd258, %rd257;
	mov.b64 {%r222,%r223}, %rd259;
	mov.u32 	%r229, 2;
	shfl.sync.bfly.b32 	%r225|%p57, %r223, %r229, %r226, %r228;
	shfl.sync.bfly.b32 	%r224|%p58, %r222, %r229, %r226, %r228;
	mov.b64 %rd260, {%r224,%r225};
	cvt.s64.s32 	%rd270, %r15;
	mul.lo.s64 	%rd271, %rd270, -2457058741658706944;
	add.s64 	%rd272, %rd259, %rd271;
	add.s64 	%rd48, %rd272, %rd260;
	setp.ne.s32 	%p59, %r248, 0;
	@%p59 bra 	$L__BB0_26;
	mov.u32 	%r250, %ctaid.x;
	cvt.u64.u32 	%rd294, %r250;
	ld.param.u64 	%rd293, [mr_gather_param_4];
	shr.u64 	%rd273, %rd48, 37;
	xor.b64  	%rd274, %rd273, %rd48;
	mul.lo.s64 	%rd275, %rd274, 1609587791953885689;
	shr.u64 	%rd276, %rd275, 32;
	xor.b64  	%rd277, %rd276, %rd275;
	setp.eq.s64 	%p60, %rd277, %rd3;
	selp.u16 	%rs1, 1, 0, %p60;
	st.shared.u8 	[_ZZ9mr_gatherE4good], %rs1;
	selp.u32 	%r230, 1, 0, %p60;
	cvta.to.global.u64 	%rd278, %rd293;
	shl.b64 	%rd279, %rd294, 2;
	add.s64 	%rd280, %rd278, %rd279;
	st.global.u32 	[%rd280], %r230;
$L__BB0_26:
	bar.sync 	0;
	ld.shared.u8 	%rs2, [_ZZ9mr_gatherE4good];
	setp.eq.s16 	%p61, %rs2, 0;
	@%p61 bra 	$L__BB0_37;
	mov.u32 	%r249, %tid.x;
	and.b32  	%r44, %r249, 31;
	shr.u32 	%r271, %r249, 5;
	setp.ge.u32 	%p62, %r271, %r59;
	@%p62 bra 	$L__BB0_37;
	ld.param.u64 	%rd292, [mr_gather_param_2];
	shl.b32 	%r46, %r44, 4;
	cvta.to.global.u64 	%rd49, %rd292;
$L__BB0_29:
	.pragma "nounroll";
	add.s32 	%r231, %r271, %r58;
	mul.wide.u32 	%rd281, %r231, 16;
	add.s64 	%rd282, %rd49, %rd281;
	ld.global.v2.u32 	{%r232, %r233}, [%rd282+8];
	cvt.u64.u32 	%rd283, %r232;
	ld.global.u64 	%rd50, [%rd282];
	or.b64  	%rd284, %rd50, %rd283;
	cvt.u64.u32 	%rd285, %r233;
	or.b64  	%rd286, %rd284, %rd285;
	and.b64  	%rd287, %rd286, 15;
	setp.eq.s64 	%p63, %rd287, 0;
	@%p63 bra 	$L__BB0_33;
	setp.ge.u32 	%p64, %r44, %r233;
	@%p64 bra 	$L__BB0_36;
	mov.u32 	%r272, %r44;
$L__BB0_32:
	.pragma "nounroll";
	add.s32 	%r234, %r272, %r232;
	mov.u32 	%r235, data;
	add.s32 	%r236, %r235, %r234;
	ld.shared.u8 	%rs3, [%r236];
	cvt.u64.u32 	%rd288, %r272;
	add.s64 	%rd289, %rd50, %rd288;
	st.u8 	[%rd289], %rs3;
	add.s32 	%r272, %r272, 32;
	setp.lt.u32 	%p65, %r272, %r233;
	@%p65 bra 	$L__BB0_32;
	bra.uni 	$L__BB0_36;
$L__BB0_33:
	setp.ge.u32 	%p66, %r46, %r233;
	@%p66 bra 	$L__BB0_36;
	mov.u32 	%r273, %r46;
$L__BB0_35:
	.pragma "nounroll";
	cvt.u64.u32 	%rd290, %r273;
	add.s64 	%rd291, %rd50, %rd290;
	add.s32 	%r237, %r273, %r232;
	mov.u32 	%r238, data;
	add.s32 	%r239, %r238, %r237;
	ld.shared.v4.u32 	{%r240, %r241, %r242, %r243}, [%r239];
	st.v4.u32 	[%rd291], {%r240, %r241, %r242, %r243};
	add.s32 	%r273, %r273, 512;
	setp.lt.u32 	%p67, %r273, %r233;
	@%p67 bra 	$L__BB0_35;
$L__BB0_36:
	add.s32 	%r271, %r271, 8;
	setp.lt.u32 	%p68, %r271, %r59;
	@%p68 bra 	$L__BB0_29;
$L__BB0_37:
	ret;
}
)ptx";

}  // namespace millrace::kvclient
