"""Small programs as the TPU's compiler writes them, made up for these tests."""

# Two layers in a loop of 3, each with a fusion, a slice of stacked parameters, an all-reduce and a kernel
# without an estimate; then a gather beside computation, and a copy.
TRAIN_STEP = """\
HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[3,8,128]{2,1,0:T(8,128)})->f32[8,128]{1,0}}

FileNames
1 "step.py"

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %added = f32[]{:T(128)} add(%a, %b)
}

%fused_slice (param_0: f32[3,8,128], param_1: s32[]) -> f32[8,128] {
  %param_1 = s32[]{:T(128)} parameter(1)
  %param_0 = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %one_layer = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%param_0, %param_1, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %layer = f32[8,128]{1,0:T(8,128)} bitcast(%one_layer)
}

%fused_product (param_0.1: bf16[16,64], param_1.1: bf16[64,32]) -> f32[16,32] {
  %param_0.1 = bf16[16,64]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1.1 = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %product = f32[16,32]{1,0:T(8,128)} convolution(%param_0.1, %param_1.1), dim_labels=bf_io->bf
}

%fused_gather (param_0.2: f32[2,128]) -> f32[8,128] {
  %param_0.2 = f32[2,128]{1,0:T(2,128)} parameter(0)
  %all-gather.1 = f32[8,128]{1,0:T(8,128)} all-gather(%param_0.2), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true
  ROOT %begun = (f32[2,128]{1,0:T(2,128)}, f32[8,128]{1,0:T(8,128)}) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%fused_gather_end (param_0.3: f32[2,128], param_1.3: f32[8,128]) -> f32[8,128] {
  %param_0.3 = f32[2,128]{1,0:T(2,128)} parameter(0)
  %param_1.3 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %all-gather.2 = f32[8,128]{1,0:T(8,128)} all-gather(%param_0.3), channel_id=2, replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true
  ROOT %ended = f32[8,128]{1,0:T(8,128)} custom-call(%param_0.3, %param_1.3, %all-gather.2), custom_call_target="AsyncCollectiveDone"
}

%body (state: (s32[], f32[3,8,128], bf16[16,64], bf16[64,32])) -> (s32[], f32[3,8,128], bf16[16,64], bf16[64,32]) {
  %state = (s32[]{:T(128)}, f32[3,8,128]{2,1,0:T(8,128)}, bf16[16,64]{1,0:T(8,128)(2,1)}, /*index=3*/bf16[64,32]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%state), index=0
  %stack = f32[3,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %x = bf16[16,64]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=2
  %w = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%state), index=3
  %slice_fusion = f32[8,128]{1,0:T(8,128)} fusion(%stack, %count), kind=kLoop, calls=%fused_slice, backend_config={"window_config":{"estimated_cycles":"100"}}
  %product_fusion = f32[16,32]{1,0:T(8,128)} fusion(%x, %w), kind=kOutput, calls=%fused_product, metadata={op_name="jit(train_step)/dot_general"}, backend_config={"window_config":{"estimated_cycles":"1000"}}
  %all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, f32[16,32]{1,0:T(8,128)}) all-reduce(%slice_fusion, %product_fusion), channel_id=1, replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, use_global_device_ids=true, to_apply=%sum
  %kernel = f32[16,128]{1,0:T(8,128)} custom-call(%stack), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128}"
}}, metadata={op_name="jit(train_step)/splash_mha_fwd"}
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%count, %one)
  ROOT %after = (s32[]{:T(128)}, f32[3,8,128]{2,1,0:T(8,128)}, bf16[16,64]{1,0:T(8,128)(2,1)}, bf16[64,32]{1,0:T(8,128)(2,1)S(1)}) tuple(%next, %stack, %x, %w)
}

%condition (state.1: (s32[], f32[3,8,128], bf16[16,64], bf16[64,32])) -> pred[] {
  %trips = s32[]{:T(128)} constant(3)
  %state.1 = (s32[]{:T(128)}, f32[3,8,128]{2,1,0:T(8,128)}, bf16[16,64]{1,0:T(8,128)(2,1)}, bf16[64,32]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %done = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%done, %trips), direction=LT
}

ENTRY %main (p0: f32[3,8,128], p1: bf16[16,64], p2: bf16[64,32], p3: f32[2,128]) -> f32[8,128] {
  %p0 = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %p1 = bf16[16,64]{1,0:T(8,128)(2,1)} parameter(1)
  %p2 = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(2)
  %p3 = f32[2,128]{1,0:T(2,128)} parameter(3)
  %copy-start = (bf16[64,32]{1,0:T(8,128)(2,1)S(1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%p2)
  %copy-done = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %zero.1 = s32[]{:T(128)} constant(0)
  %before = (s32[]{:T(128)}, f32[3,8,128]{2,1,0:T(8,128)}, bf16[16,64]{1,0:T(8,128)(2,1)}, bf16[64,32]{1,0:T(8,128)(2,1)S(1)}) tuple(%zero.1, %p0, %p1, %copy-done)
  %while.1 = (s32[]{:T(128)}, f32[3,8,128]{2,1,0:T(8,128)}, bf16[16,64]{1,0:T(8,128)(2,1)}, bf16[64,32]{1,0:T(8,128)(2,1)S(1)}) while(%before), condition=%condition, body=%body
  %gather_start = (f32[2,128]{1,0:T(2,128)}, f32[8,128]{1,0:T(8,128)}) fusion(%p3), kind=kCustom, calls=%fused_gather, backend_config={"window_config":{"estimated_cycles":"4"}}
  %source = f32[2,128]{1,0:T(2,128)} get-tuple-element(%gather_start), index=0
  %target = f32[8,128]{1,0:T(8,128)} get-tuple-element(%gather_start), index=1
  %gather_fusion = f32[8,128]{1,0:T(8,128)} fusion(%source, %target), kind=kCustom, calls=%fused_gather_end, backend_config={"window_config":{"estimated_cycles":"6"}}
  ROOT %copy.1.remat = f32[8,128]{0,1:T(8,128)} copy(%gather_fusion), backend_config={"window_config":{"estimated_cycles":"500"}}
}
"""  # noqa: E501
