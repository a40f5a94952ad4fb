// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/gather_ptx.h"

namespace millrace::kvclient {

// Written by tools/check_ptx.py --write, not by hand: `nvcc -ptx -arch=compute_75 -O3` (13.0) of gather.cu; .version and
// .target are lowered to what drivers of CUDA 11.0 and later accept.
// SHA-256 of gather.cu: 3db87d7b155209502e96521a0b82a69e89fcf07b91deafc6e57c826fcae6e85e
const char kGatherPtx[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64
.const .align 8 .b8 kSecret[192] = {184, 254, 108, 57, 35, 164, 75, 190, 124, 1, 129, 44, 247, 33, 173, 28, 222,
    212, 109, 233, 131, 144, 151, 219, 114, 64, 164, 164, 183, 179, 103, 31, 203, 121, 230, 78, 204, 192, 229, 120,
    130, 90, 208, 125, 204, 255, 114, 33, 184, 8, 70, 116, 247, 67, 36, 142, 224, 53, 144, 230, 129, 58, 38, 76, 60,
    40, 82, 187, 145, 195, 0, 203, 136, 208, 101, 139, 27, 83, 46, 163, 113, 100, 72, 151, 162, 13, 249, 78, 56, 25,
    239, 70, 169, 222, 172, 216, 168, 250, 118, 63, 227, 156, 52, 63, 249, 220, 187, 199, 199, 11, 79, 29, 138, 81,
    224, 75, 205, 180, 89, 49, 200, 159, 126, 201, 217, 120, 115, 100, 234, 197, 172, 131, 52, 211, 235, 195, 197,
    129, 160, 255, 250, 19, 99, 235, 23, 13, 221, 81, 183, 240, 218, 73, 211, 22, 85, 38, 41, 212, 104, 158, 43, 22,
    190, 88, 125, 71, 161, 252, 143, 248, 184, 209, 122, 208, 49, 206, 69, 203, 58, 143, 149, 22, 4, 40, 175, 215,
    251, 202, 187, 75, 64, 126};
.const .align 8 .b8 kLastSecret[64] = {159, 126, 201, 217, 120, 115, 100, 234, 197, 172, 131, 52, 211, 235, 195,
    197, 129, 160, 255, 250, 19, 99, 235, 23, 13, 221, 81, 183, 240, 218, 73, 211, 22, 85, 38, 41, 212, 104, 158,
    43, 22, 190, 88, 125, 71, 161, 252, 143, 248, 184, 209, 122, 208, 49, 206, 69, 203, 58, 143, 149, 22, 4, 40,
    175};
.const .align 8 .b8 kMergeSecret[64] = {44, 247, 33, 173, 28, 222, 212, 109, 233, 131, 144, 151, 219, 114, 64, 164,
    164, 183, 179, 103, 31, 203, 121, 230, 78, 204, 192, 229, 120, 130, 90, 208, 125, 204, 255, 114, 33, 184, 8, 70,
    116, 247, 67, 36, 142, 224, 53, 144, 230, 129, 58, 38, 76, 60, 40, 82, 187, 145, 195, 0, 203, 136, 208, 101};
.const .align 8 .b8 kFirst[64] = {61, 174, 178, 194, 0, 0, 0, 0, 135, 202, 235, 133, 177, 121, 55, 158, 79, 235,
    212, 39, 61, 174, 178, 194, 249, 121, 55, 158, 177, 103, 86, 22, 99, 174, 178, 194, 119, 202, 235, 133, 119,
    202, 235, 133, 0, 0, 0, 0, 197, 103, 86, 22, 47, 235, 212, 39, 177, 121, 55, 158};
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
	.reg .b32 	%r<169>;
	.reg .b64 	%rd<209>;
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
	setp.ge.u32 	%p2, %r5, %r4;
	@%p2 bra 	$L__BB0_7;
	ld.global.u64 	%rd49, [%rd2];
	add.s64 	%rd4, %rd43, %rd49;
	not.b32 	%r51, %r5;
	add.s32 	%r6, %r4, %r51;
	shr.u32 	%r52, %r6, 8;
	add.s32 	%r53, %r52, 1;
	and.b32  	%r157, %r53, 7;
	setp.eq.s32 	%p3, %r157, 0;
	mov.u32 	%r158, %r5;
	@%p3 bra 	$L__BB0_4;
	mov.u32 	%r158, %r5;
$L__BB0_3:
	.pragma "nounroll";
	mul.wide.u32 	%rd51, %r158, 16;
	add.s64 	%rd50, %rd4, %rd51;
	ld.global.cg.v4.u32 {%r54,%r55,%r56,%r57}, [%rd50];
	shl.b32 	%r58, %r158, 4;
	mov.u32 	%r59, data;
	add.s32 	%r60, %r59, %r58;
	st.shared.v4.u32 	[%r60], {%r54, %r55, %r56, %r57};
	add.s32 	%r158, %r158, 256;
	add.s32 	%r157, %r157, -1;
	setp.ne.s32 	%p4, %r157, 0;
	@%p4 bra 	$L__BB0_3;
$L__BB0_4:
	setp.lt.u32 	%p5, %r6, 1792;
	@%p5 bra 	$L__BB0_7;
	mov.u32 	%r94, data;
$L__BB0_6:
	.pragma "nounroll";
	mul.wide.u32 	%rd60, %r158, 16;
	add.s64 	%rd52, %rd4, %rd60;
	ld.global.cg.v4.u32 {%r61,%r62,%r63,%r64}, [%rd52];
	shl.b32 	%r93, %r158, 4;
	add.s32 	%r95, %r94, %r93;
	st.shared.v4.u32 	[%r95], {%r61, %r62, %r63, %r64};
	add.s32 	%r96, %r158, 256;
	mul.wide.u32 	%rd61, %r96, 16;
	add.s64 	%rd53, %rd4, %rd61;
	ld.global.cg.v4.u32 {%r65,%r66,%r67,%r68}, [%rd53];
	st.shared.v4.u32 	[%r95+4096], {%r65, %r66, %r67, %r68};
	add.s32 	%r97, %r158, 512;
	mul.wide.u32 	%rd62, %r97, 16;
	add.s64 	%rd54, %rd4, %rd62;
	ld.global.cg.v4.u32 {%r69,%r70,%r71,%r72}, [%rd54];
	st.shared.v4.u32 	[%r95+8192], {%r69, %r70, %r71, %r72};
	add.s32 	%r98, %r158, 768;
	mul.wide.u32 	%rd63, %r98, 16;
	add.s64 	%rd55, %rd4, %rd63;
	ld.global.cg.v4.u32 {%r73,%r74,%r75,%r76}, [%rd55];
	st.shared.v4.u32 	[%r95+12288], {%r73, %r74, %r75, %r76};
	add.s32 	%r99, %r158, 1024;
	mul.wide.u32 	%rd64, %r99, 16;
	add.s64 	%rd56, %rd4, %rd64;
	ld.global.cg.v4.u32 {%r77,%r78,%r79,%r80}, [%rd56];
	st.shared.v4.u32 	[%r95+16384], {%r77, %r78, %r79, %r80};
	add.s32 	%r100, %r158, 1280;
	mul.wide.u32 	%rd65, %r100, 16;
	add.s64 	%rd57, %rd4, %rd65;
	ld.global.cg.v4.u32 {%r81,%r82,%r83,%r84}, [%rd57];
	st.shared.v4.u32 	[%r95+20480], {%r81, %r82, %r83, %r84};
	add.s32 	%r101, %r158, 1536;
	mul.wide.u32 	%rd66, %r101, 16;
	add.s64 	%rd58, %rd4, %rd66;
	ld.global.cg.v4.u32 {%r85,%r86,%r87,%r88}, [%rd58];
	st.shared.v4.u32 	[%r95+24576], {%r85, %r86, %r87, %r88};
	add.s32 	%r102, %r158, 1792;
	mul.wide.u32 	%rd67, %r102, 16;
	add.s64 	%rd59, %rd4, %rd67;
	ld.global.cg.v4.u32 {%r89,%r90,%r91,%r92}, [%rd59];
	st.shared.v4.u32 	[%r95+28672], {%r89, %r90, %r91, %r92};
	add.s32 	%r158, %r158, 2048;
	setp.lt.u32 	%p6, %r158, %r4;
	@%p6 bra 	$L__BB0_6;
$L__BB0_7:
	bar.sync 	0;
	setp.gt.u32 	%p7, %r5, 31;
	@%p7 bra 	$L__BB0_23;
	shr.u32 	%r15, %r47, 10;
	and.b32  	%r16, %r5, 3;
	shl.b32 	%r103, %r5, 1;
	and.b32  	%r17, %r103, 6;
	cvt.u64.u32 	%rd5, %r17;
	mul.wide.u32 	%rd68, %r17, 8;
	mov.u64 	%rd69, kFirst;
	add.s64 	%rd70, %rd69, %rd68;
	ld.const.u64 	%rd206, [%rd70];
	ld.const.u64 	%rd205, [%rd70+8];
	setp.eq.s32 	%p8, %r15, 0;
	@%p8 bra 	$L__BB0_21;
	shl.b64 	%rd71, %rd5, 3;
	mov.u64 	%rd72, kLastSecret;
	add.s64 	%rd73, %rd72, %rd71;
	ld.const.u64 	%rd8, [%rd73];
	ld.const.u64 	%rd9, [%rd73+8];
	mov.u64 	%rd75, kSecret;
	add.s64 	%rd76, %rd75, %rd68;
	ld.const.u64 	%rd10, [%rd76+128];
	ld.const.u64 	%rd11, [%rd76+136];
	add.s32 	%r18, %r15, -1;
	mul.wide.u32 	%rd77, %r16, 2;
	shl.b64 	%rd78, %rd77, 3;
	add.s64 	%rd79, %rd75, %rd78;
	add.s64 	%rd12, %rd79, 16;
	shl.b32 	%r106, %r16, 4;
	mov.u32 	%r107, data;
	add.s32 	%r108, %r107, %r106;
	add.s32 	%r19, %r108, 128;
	and.b32  	%r109, %r5, 31;
	shr.u32 	%r20, %r109, 2;
	mov.u32 	%r160, 0;
$L__BB0_10:
	.pragma "nounroll";
	add.s32 	%r22, %r160, %r20;
	setp.ge.u32 	%p9, %r22, %r15;
	mov.u64 	%rd201, 0;
	mov.u64 	%rd202, %rd201;
	@%p9 bra 	$L__BB0_17;
	shl.b32 	%r112, %r22, 10;
	add.s32 	%r161, %r19, %r112;
	mov.u64 	%rd201, 0;
	mov.u32 	%r163, 768;
	mov.u32 	%r162, -16;
	mov.u64 	%rd196, %rd12;
$L__BB0_12:
	.pragma "nounroll";
	ld.shared.v2.u64 	{%rd84, %rd85}, [%r161+-128];
	ld.const.u64 	%rd88, [%rd196+-16];
	xor.b64  	%rd89, %rd88, %rd84;
	and.b64  	%rd90, %rd89, 4294967295;
	shr.u64 	%rd91, %rd89, 32;
	mul.lo.s64 	%rd92, %rd90, %rd91;
	add.s64 	%rd93, %rd202, %rd85;
	add.s64 	%rd94, %rd93, %rd92;
	ld.const.u64 	%rd95, [%rd196+-8];
	xor.b64  	%rd96, %rd95, %rd85;
	and.b64  	%rd97, %rd96, 4294967295;
	shr.u64 	%rd98, %rd96, 32;
	mul.lo.s64 	%rd99, %rd97, %rd98;
	add.s64 	%rd100, %rd201, %rd84;
	add.s64 	%rd101, %rd100, %rd99;
	ld.shared.v2.u64 	{%rd102, %rd103}, [%r161+-64];
	xor.b64  	%rd106, %rd95, %rd102;
	and.b64  	%rd107, %rd106, 4294967295;
	shr.u64 	%rd108, %rd106, 32;
	mul.lo.s64 	%rd109, %rd107, %rd108;
	add.s64 	%rd110, %rd94, %rd103;
	add.s64 	%rd111, %rd110, %rd109;
	ld.const.u64 	%rd112, [%rd196];
	xor.b64  	%rd113, %rd112, %rd103;
	and.b64  	%rd114, %rd113, 4294967295;
	shr.u64 	%rd115, %rd113, 32;
	mul.lo.s64 	%rd116, %rd114, %rd115;
	add.s64 	%rd117, %rd101, %rd102;
	add.s64 	%rd118, %rd117, %rd116;
	ld.shared.v2.u64 	{%rd119, %rd120}, [%r161];
	xor.b64  	%rd123, %rd112, %rd119;
	and.b64  	%rd124, %rd123, 4294967295;
	shr.u64 	%rd125, %rd123, 32;
	mul.lo.s64 	%rd126, %rd124, %rd125;
	add.s64 	%rd127, %rd111, %rd120;
	add.s64 	%rd19, %rd127, %rd126;
	ld.const.u64 	%rd20, [%rd196+8];
	xor.b64  	%rd128, %rd20, %rd120;
	and.b64  	%rd129, %rd128, 4294967295;
	shr.u64 	%rd130, %rd128, 32;
	mul.lo.s64 	%rd131, %rd129, %rd130;
	add.s64 	%rd132, %rd118, %rd119;
	add.s64 	%rd21, %rd132, %rd131;
	ld.shared.v2.u64 	{%rd133, %rd134}, [%r161+64];
	setp.eq.s32 	%p10, %r162, -4;
	setp.eq.s32 	%p11, %r22, %r18;
	and.pred  	%p1, %p11, %p10;
	mov.u64 	%rd199, %rd8;
	@%p1 bra 	$L__BB0_14;
	mov.u64 	%rd199, %rd20;
$L__BB0_14:
	xor.b64  	%rd135, %rd199, %rd133;
	and.b64  	%rd136, %rd135, 4294967295;
	shr.u64 	%rd137, %rd135, 32;
	mul.lo.s64 	%rd138, %rd136, %rd137;
	add.s64 	%rd139, %rd19, %rd134;
	add.s64 	%rd202, %rd139, %rd138;
	mov.u64 	%rd200, %rd9;
	@%p1 bra 	$L__BB0_16;
	ld.const.u64 	%rd200, [%rd196+16];
$L__BB0_16:
	xor.b64  	%rd140, %rd200, %rd134;
	and.b64  	%rd141, %rd140, 4294967295;
	shr.u64 	%rd142, %rd140, 32;
	mul.lo.s64 	%rd143, %rd141, %rd142;
	add.s64 	%rd144, %rd21, %rd133;
	add.s64 	%rd201, %rd144, %rd143;
	add.s64 	%rd196, %rd196, 32;
	add.s32 	%r162, %r162, 4;
	add.s32 	%r161, %r161, 256;
	add.s32 	%r163, %r163, -256;
	setp.ne.s32 	%p12, %r163, -256;
	@%p12 bra 	$L__BB0_12;
$L__BB0_17:
	setp.ge.u32 	%p13, %r160, %r15;
	@%p13 bra 	$L__BB0_20;
	mov.u32 	%r165, 0;
	mov.u32 	%r164, %r160;
$L__BB0_19:
	.pragma "nounroll";
	shl.b32 	%r122, %r165, 2;
	or.b32  	%r123, %r122, %r16;
	mov.b64 {%r114,%r115}, %rd202;
	mov.u32 	%r124, 31;
	mov.u32 	%r125, -1;
	shfl.sync.idx.b32 	%r117|%p14, %r115, %r123, %r124, %r125;
	shfl.sync.idx.b32 	%r116|%p15, %r114, %r123, %r124, %r125;
	mov.b64 %rd146, {%r116,%r117};
	add.s64 	%rd149, %rd146, %rd206;
	shr.u64 	%rd150, %rd149, 47;
	xor.b64  	%rd151, %rd150, %rd149;
	xor.b64  	%rd152, %rd151, %rd10;
	mul.lo.s64 	%rd153, %rd152, 2654435761;
	setp.eq.s32 	%p16, %r164, %r18;
	selp.b64 	%rd206, %rd149, %rd153, %p16;
	mov.b64 {%r118,%r119}, %rd201;
	shfl.sync.idx.b32 	%r121|%p17, %r119, %r123, %r124, %r125;
	shfl.sync.idx.b32 	%r120|%p18, %r118, %r123, %r124, %r125;
	mov.b64 %rd148, {%r120,%r121};
	add.s64 	%rd154, %rd148, %rd205;
	shr.u64 	%rd155, %rd154, 47;
	xor.b64  	%rd156, %rd155, %rd154;
	xor.b64  	%rd157, %rd156, %rd11;
	mul.lo.s64 	%rd158, %rd157, 2654435761;
	selp.b64 	%rd205, %rd154, %rd158, %p16;
	add.s32 	%r165, %r165, 1;
	setp.lt.u32 	%p19, %r165, 8;
	add.s32 	%r164, %r165, %r160;
	setp.lt.u32 	%p20, %r164, %r15;
	and.pred  	%p21, %p19, %p20;
	@%p21 bra 	$L__BB0_19;
$L__BB0_20:
	add.s32 	%r160, %r160, 8;
	setp.lt.u32 	%p22, %r160, %r15;
	@%p22 bra 	$L__BB0_10;
$L__BB0_21:
	shl.b64 	%rd163, %rd5, 3;
	mov.u64 	%rd164, kMergeSecret;
	add.s64 	%rd165, %rd164, %rd163;
	ld.const.u64 	%rd166, [%rd165];
	xor.b64  	%rd167, %rd166, %rd206;
	ld.const.u64 	%rd168, [%rd165+8];
	xor.b64  	%rd169, %rd168, %rd205;
	mul.lo.s64 	%rd170, %rd169, %rd167;
	mul.hi.u64 	%rd171, %rd167, %rd169;
	xor.b64  	%rd159, %rd170, %rd171;
	mov.b64 {%r126,%r127}, %rd159;
	mov.u32 	%r134, 31;
	mov.u32 	%r135, 1;
	mov.u32 	%r136, -1;
	shfl.sync.bfly.b32 	%r129|%p23, %r127, %r135, %r134, %r136;
	shfl.sync.bfly.b32 	%r128|%p24, %r126, %r135, %r134, %r136;
	mov.b64 %rd160, {%r128,%r129};
	add.s64 	%rd161, %rd160, %rd159;
	mov.b64 {%r130,%r131}, %rd161;
	mov.u32 	%r137, 2;
	shfl.sync.bfly.b32 	%r133|%p25, %r131, %r137, %r134, %r136;
	shfl.sync.bfly.b32 	%r132|%p26, %r130, %r137, %r134, %r136;
	mov.b64 %rd162, {%r132,%r133};
	cvt.u64.u32 	%rd172, %r15;
	mul.lo.s64 	%rd173, %rd172, -2457058741658706944;
	add.s64 	%rd174, %rd161, %rd173;
	add.s64 	%rd40, %rd174, %rd162;
	setp.ne.s32 	%p27, %r5, 0;
	@%p27 bra 	$L__BB0_23;
	shr.u64 	%rd175, %rd40, 37;
	xor.b64  	%rd176, %rd175, %rd40;
	mul.lo.s64 	%rd177, %rd176, 1609587791953885689;
	shr.u64 	%rd178, %rd177, 32;
	xor.b64  	%rd179, %rd178, %rd177;
	setp.eq.s64 	%p28, %rd179, %rd3;
	selp.u16 	%rs1, 1, 0, %p28;
	st.shared.u8 	[_ZZ9mr_gatherE4good], %rs1;
	selp.u32 	%r138, 1, 0, %p28;
	cvta.to.global.u64 	%rd180, %rd45;
	shl.b64 	%rd181, %rd1, 2;
	add.s64 	%rd182, %rd180, %rd181;
	st.global.u32 	[%rd182], %r138;
$L__BB0_23:
	bar.sync 	0;
	ld.shared.u8 	%rs2, [_ZZ9mr_gatherE4good];
	setp.eq.s16 	%p29, %rs2, 0;
	@%p29 bra 	$L__BB0_34;
	and.b32  	%r35, %r5, 31;
	shr.u32 	%r166, %r5, 5;
	setp.ge.u32 	%p30, %r166, %r50;
	@%p30 bra 	$L__BB0_34;
	shl.b32 	%r37, %r35, 4;
	cvta.to.global.u64 	%rd41, %rd44;
$L__BB0_26:
	.pragma "nounroll";
	add.s32 	%r139, %r166, %r49;
	mul.wide.u32 	%rd183, %r139, 16;
	add.s64 	%rd184, %rd41, %rd183;
	ld.global.v2.u32 	{%r140, %r141}, [%rd184+8];
	cvt.u64.u32 	%rd185, %r140;
	ld.global.u64 	%rd42, [%rd184];
	or.b64  	%rd186, %rd42, %rd185;
	cvt.u64.u32 	%rd187, %r141;
	or.b64  	%rd188, %rd186, %rd187;
	and.b64  	%rd189, %rd188, 15;
	setp.eq.s64 	%p31, %rd189, 0;
	@%p31 bra 	$L__BB0_30;
	setp.ge.u32 	%p32, %r35, %r141;
	@%p32 bra 	$L__BB0_33;
	mov.u32 	%r167, %r35;
$L__BB0_29:
	.pragma "nounroll";
	add.s32 	%r142, %r167, %r140;
	mov.u32 	%r143, data;
	add.s32 	%r144, %r143, %r142;
	ld.shared.u8 	%rs3, [%r144];
	cvt.u64.u32 	%rd190, %r167;
	add.s64 	%rd191, %rd42, %rd190;
	st.u8 	[%rd191], %rs3;
	add.s32 	%r167, %r167, 32;
	setp.lt.u32 	%p33, %r167, %r141;
	@%p33 bra 	$L__BB0_29;
	bra.uni 	$L__BB0_33;
$L__BB0_30:
	setp.ge.u32 	%p34, %r37, %r141;
	@%p34 bra 	$L__BB0_33;
	mov.u32 	%r168, %r37;
$L__BB0_32:
	.pragma "nounroll";
	cvt.u64.u32 	%rd192, %r168;
	add.s64 	%rd193, %rd42, %rd192;
	add.s32 	%r145, %r168, %r140;
	mov.u32 	%r146, data;
	add.s32 	%r147, %r146, %r145;
	ld.shared.v4.u32 	{%r148, %r149, %r150, %r151}, [%r147];
	st.v4.u32 	[%rd193], {%r148, %r149, %r150, %r151};
	add.s32 	%r168, %r168, 512;
	setp.lt.u32 	%p35, %r168, %r141;
	@%p35 bra 	$L__BB0_32;
$L__BB0_33:
	add.s32 	%r166, %r166, 8;
	setp.lt.u32 	%p36, %r166, %r50;
	@%p36 bra 	$L__BB0_26;
$L__BB0_34:
	ret;
}
)ptx";

}  // namespace millrace::kvclient
