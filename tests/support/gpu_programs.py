"""A small program as XLA writes them for GPUs, made up for these tests."""

# A loop of 3 turns over stacked weights, each with a slice of them, a product by cuBLAS, one with an operand
# sliced in its fusion, attention forward, and an all-reduce beside it; then a Triton kernel with a product
# in it, attention backward by cuDNN, and an all-reduce that is waited for.
TRAIN_STEP = """\
HloModule jit_train_step, is_scheduled=true

%fused_slice (p.0: bf16[3,64,32], p.1: s32[]) -> bf16[1,64,32] {
  %p.0 = bf16[3,64,32]{2,1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %layer = bf16[1,64,32]{2,1,0} dynamic-slice(%p.0, %p.1, %zero, %zero), dynamic_slice_sizes={1,64,32}
}

%fused_sliced_product (q.0: bf16[3,64,32], q.1: s32[], q.2: bf16[16,64]) -> (bf16[16,32], s8[4194304]) {
  %q.2 = bf16[16,64]{1,0} parameter(2)
  %q.0 = bf16[3,64,32]{2,1,0} parameter(0)
  %q.1 = s32[] parameter(1)
  %nought = s32[] constant(0)
  %part = bf16[1,64,32]{2,1,0} dynamic-slice(%q.0, %q.1, %nought, %nought), dynamic_slice_sizes={1,64,32}
  %matrix = bf16[64,32]{1,0} bitcast(%part)
  ROOT %gemm = (bf16[16,32]{1,0}, s8[4194304]{0}) custom-call(%q.2, %matrix), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
}

%triton_product (t.0: f32[16,64], t.1: f32[64,8]) -> f32[16,8] {
  %t.0 = f32[16,64]{1,0} parameter(0)
  %t.1 = f32[64,8]{1,0} parameter(1)
  ROOT %dot.1 = f32[16,8]{1,0} dot(%t.0, %t.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%triton_norm (n.0: f32[16,64]) -> f32[16,64] {
  %n.0 = f32[16,64]{1,0} parameter(0)
  ROOT %twice = f32[16,64]{1,0} add(%n.0, %n.0)
}

%body (state: (s32[], bf16[3,64,32], bf16[16,64], bf16[2,4,8,16])) -> (s32[], bf16[3,64,32], bf16[16,64], bf16[2,4,8,16]) {
  %state = (s32[], bf16[3,64,32]{2,1,0}, bf16[16,64]{1,0}, bf16[2,4,8,16]{3,2,1,0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %stack = bf16[3,64,32]{2,1,0} get-tuple-element(%state), index=1
  %x = bf16[16,64]{1,0} get-tuple-element(%state), index=2
  %heads = bf16[2,4,8,16]{3,2,1,0} get-tuple-element(%state), index=3
  %slice_fusion = bf16[1,64,32]{2,1,0} fusion(%stack, %count), kind=kCustom, calls=%fused_slice, backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion","kernel_index":0}}}
  %weights = bf16[64,32]{1,0} bitcast(%slice_fusion)
  %product = (bf16[16,32]{1,0}, s8[4194304]{0}) custom-call(%x, %weights), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"selected_algorithm":"0","dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},"epilogue":"BIAS"}}
  %sliced = (bf16[16,32]{1,0}, s8[4194304]{0}) fusion(%stack, %count, %x), kind=kCustom, calls=%fused_sliced_product, backend_config={"fusion_backend_config":{"kind":"__custom_fusion","custom_fusion_config":{"name":"dynamic_slice_fusion","kernel_index":0}}}
  %attend = (bf16[2,4,8,16]{3,2,1,0}, f32[2,4,8]{2,1,0}, u8[0]{0}) custom-call(%heads, %heads, %heads), custom_call_target="__cudnn$fmhaScaleBiasSoftmax", backend_config={"operation_queue_id": "0", "cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "4", "8", "8"], "tuple_shapes": []}, "bmm1_dot_dimension_numbers": {"lhs_contracting_dimensions": ["3"]}}}
  %reduce-start = bf16[16,64]{1,0} all-reduce-start(%x), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%sum, backend_config={"collective_backend_config":{"is_sync":false}}
  %reduce-done = bf16[16,64]{1,0} all-reduce-done(%reduce-start)
  %one = s32[] constant(1)
  %next = s32[] add(%count, %one)
  ROOT %after = (s32[], bf16[3,64,32]{2,1,0}, bf16[16,64]{1,0}, bf16[2,4,8,16]{3,2,1,0}) tuple(%next, %stack, %reduce-done, %heads)
}

%condition (before: (s32[], bf16[3,64,32], bf16[16,64], bf16[2,4,8,16])) -> pred[] {
  %before = (s32[], bf16[3,64,32]{2,1,0}, bf16[16,64]{1,0}, bf16[2,4,8,16]{3,2,1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%before), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%turn, %three), direction=LT
}

ENTRY %main (p0: bf16[3,64,32], p1: bf16[16,64], p2: bf16[2,4,8,16], p3: f32[16,64], p4: f32[64,8]) -> f32[16,8] {
  %p0 = bf16[3,64,32]{2,1,0} parameter(0)
  %p1 = bf16[16,64]{1,0} parameter(1)
  %p2 = bf16[2,4,8,16]{3,2,1,0} parameter(2)
  %p3 = f32[16,64]{1,0} parameter(3)
  %p4 = f32[64,8]{1,0} parameter(4)
  %start = s32[] constant(0)
  %tuple = (s32[], bf16[3,64,32]{2,1,0}, bf16[16,64]{1,0}, bf16[2,4,8,16]{3,2,1,0}) tuple(%start, %p0, %p1, %p2)
  %while = (s32[], bf16[3,64,32]{2,1,0}, bf16[16,64]{1,0}, bf16[2,4,8,16]{3,2,1,0}) while(%tuple), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %norm = f32[16,64]{1,0} fusion(%p3), kind=kCustom, calls=%triton_norm, backend_config={"fusion_backend_config":{"kind":"__triton"}}
  %gemm_fusion = f32[16,8]{1,0} fusion(%norm, %p4), kind=kCustom, calls=%triton_product, backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %backward = (bf16[2,4,8,16]{3,2,1,0}, bf16[2,4,8,16]{3,2,1,0}, bf16[2,4,8,16]{3,2,1,0}, u8[0]{0}) custom-call(%p2, %p2, %p2, %p2, %p2), custom_call_target="__cudnn$fmhaScaleBiasSoftmaxBackward", backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["2", "4", "8", "8"]}}}
  %waited-start = f32[16,8]{1,0} all-reduce-start(%gemm_fusion), channel_id=2, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%sum, backend_config={"collective_backend_config":{"is_sync":true}}
  ROOT %waited-done = f32[16,8]{1,0} all-reduce-done(%waited-start)
}
"""  # noqa: E501
