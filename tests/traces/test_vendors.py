"""A trace says the same whatever its vendor calls things: one table of names for the reader and for advice."""

import json

import pytest
from trace_files import BASE, call, copy, note, op, read_events, repeated, trace, work, write

import loaderviz as lv
from loaderviz.timeline import Kind
from loaderviz.vendors import Api, calls_of

GPU = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}  # what_if() asks how fast it copies
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def loop(steps=8):
    """Each step fetches, allocates and page-locks memory, copies, waits for the copy, computes, and reads the loss."""
    return repeated(
        steps,
        1_000,
        lambda n, at: [
            note(f"batch {n}: 64 samples", at, 990),
            note(LOADER, at + 5, 100),
            op("aten::to", at + 110, 300),
            call("cudaMalloc", at + 115, 40, 10 * n + 10),
            call("cudaHostAlloc", at + 160, 40, 10 * n + 11),
            call("cudaMemcpyAsync", at + 210, 60, 10 * n + 12),
            copy(at + 220, 70, 10 * n + 12, "Memcpy HtoD (Pageable -> Device)", nbytes=100_000),
            call("cudaStreamSynchronize", at + 275, 20, 10 * n + 13),
            call("cudaFree", at + 300, 30, 10 * n + 14),
            call("cudaEventRecord", at + 420, 5, 10 * n + 15),
            call("cudaLaunchKernel", at + 430, 10, 10 * n + 16),
            work("gemm", at + 445, 200, 10 * n + 16),
            call("cudaMemcpyAsync", at + 660, 10, 10 * n + 17),
            copy(at + 680, 5, 10 * n + 17, "Memcpy DtoH (Device -> Pageable)", nbytes=4),
            call("cudaStreamSynchronize", at + 690, 20, 10 * n + 18),
        ],
    )


def told(timeline, vendor="cuda"):
    """What a timeline says: kinds, causes and times of its spans, the findings, and the timeline after a change."""
    spans = [(row.kind, row.cause, row.start, row.end, row.batch) for row in timeline.rows()]
    after = [(row.kind, row.start, row.end) for row in lv.what_if(timeline, pinned=True, prefetch=2).rows()]
    found = lv.advise(timeline)
    return spans, [(each.kind, each.change.replace(vendor, "cuda"), each.expected_gain) for each in found], after


@pytest.mark.parametrize("vendor", ["hip", "musa"])
def test_another_vendor_says_the_same(tmp_path, vendor):
    ours = read_events(tmp_path, *loop(), **GPU)
    text = json.dumps(trace(*loop(), **GPU)).replace('"name": "cuda', f'"name": "{vendor}')
    if vendor == "musa":
        text = text.replace("cuda_runtime", "musa_runtime")
    assert "cuda" not in text.replace("cuda_runtime", "")
    theirs = lv.read(write(tmp_path, text, "theirs.json"))
    assert told(theirs, vendor) == told(ours)
    kinds = {finding.kind for finding in lv.advise(ours)}
    assert kinds >= {"pageable-copy", "fetch-in-loop"}
    assert lv.summarize(theirs) == lv.summarize(ours)


@pytest.mark.parametrize(
    ("does", "names"),
    [
        (
            Api.LAUNCH,
            "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cudaGraphLaunch hipExtModuleLaunchKernel "
            "hipExtLaunchKernel cudaMemsetAsync musaLaunchKernel muLaunchKernel urEnqueueKernelLaunch",
        ),
        (
            Api.LAUNCH | Api.COPY,
            "cudaMemcpy cudaMemcpyAsync cuMemcpyHtoDAsync_v2 hipMemcpyWithStream muMemcpyHtoDAsync "
            "urEnqueueUSMMemcpy zeCommandListAppendMemoryCopy",
        ),
        (
            Api.SYNCHRONIZE,
            "cudaDeviceSynchronize cuCtxSynchronize hipStreamSynchronize muStreamSynchronize "
            "urQueueFinish zeCommandListHostSynchronize",
        ),
        (Api.SYNCHRONIZE | Api.EVENT, "cudaEventSynchronize cuEventSynchronize musaEventSynchronize urEventWait"),
        (Api.EVENT, "cudaEventRecord cudaStreamWaitEvent cuEventQuery hipEventRecordWithFlags musaStreamWaitEvent"),
        (Api.ALLOCATE, "cudaMalloc cudaMallocAsync cudaFreeAsync cuMemAlloc_v2 hipMalloc musaMalloc urUSMDeviceAlloc"),
        (Api.FREE, "cudaFree cudaFreeArray cuMemFree_v2 hipFree musaFree muMemFree"),
        (
            Api.PAGE_LOCK,
            "cudaHostAlloc cudaMallocHost cudaFreeHost hipHostMalloc hipHostFree cuMemHostRegister_v2 "
            "cuMemAllocHost_v2 musaHostUnregister",
        ),
        (Api(0), "cudaLaunchHostFunc cudaHostGetDevicePointer cudaStreamIsCapturing cudaFuncSetAttribute aten::mm"),
    ],
)
def test_what_calls_do(does, names):
    assert dict.fromkeys(names.split(), does) == {name: Api(int(calls_of([name])[0])) for name in names.split()}


@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16", True),
        ("void deep_ep::intranode::dispatch<4, 768>(int*)", True),
        ("dpsk::ep::internode::combine", True),
        ("nvshmemi_transfer_rma", True),
        ("void vllm::cross_device_reduce_1stage<float, 8>(float*)", True),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>()", True),
        ("multimem_all_reduce_kernel", True),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()", True),
        ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>()", True),
        ("void aiter::reduce_scatter_cross_device_store<bf16, 8>()", True),
        ("void mori::moe::EpDispatchInterNodeKernel<float>()", True),
        ("EpCombineIntraNodeKernel_bf16", True),
        ("void lamport_style_one_shot_all_reduce_norm_kernel<half, 8>()", True),
        ("void pplx::AllToAllIntraNodeDispatch<128>()", True),
        ("pplx::AllToAllInterNodeCombine", True),
        ("AllToAllowedMaskKernel", False),
        ("rocshmem_wg_put", True),
        ("void (anonymous namespace)::softmax_kernel<float>()", False),
        ("EpilogueKernel", False),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<half>", True),
        ("void at::native::reduce_kernel<512, 1>", False),
        ("deep_epilogue_gemm", False),
        ("my_cross_device_reduce_helper_gemm", False),
        ("all_gather_is_not_how_it_begins", False),
    ],
)
def test_families_of_collectives(tmp_path, name, moves):
    timeline = read_events(tmp_path, call("cudaLaunchKernel", BASE, 5, 1), work(name, BASE + 9, 50, 1))
    assert timeline.where(Kind.COMMUNICATION).any() == moves
