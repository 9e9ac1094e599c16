"""How others use PyTorch, as short programs: each uses `device`, and leaves its answer in `out`.

SAME runs on the CPU and on the emulated GPU, CUDA_ONLY on the GPU alone, where it asserts what a GPU's PyTorch answers.
A snippet starts with its name, which says how far the two answers may be apart: by nothing, where it says nothing.
"""

PRELUDE = """
import contextlib, copy, gc, io, math, os, pickle, tempfile
import numpy as np
import torch
import torch.nn.functional as F
from torch import distributed as dist, nn

def normal(*shape, **more):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(device, **more)

def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)

@contextlib.contextmanager
def world(backend=None):
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(os.path.join(folder, "store"), 1)
        dist.init_process_group(backend or ("nccl" if device == "cuda" else "gloo"), store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()

def raised(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")
"""

SAME = {
    "tensors": """
# indexing with masks, lists, None and steps
x = normal(4, 5)
mask = torch.tensor([True, False, True, False])
out = [x[x > 0], x[:, None, ::2], x[..., -1], x[[0, 2], [1, 3]], x[mask], x[mask.to(device), 1:],
    x[torch.tensor([3, 0])]]

# assigning through indices
x = torch.zeros(4, 5, device=device)
x[1:3, ::2] = 3; x[x == 3] = -1; x[[0, 3], [4, 4]] = torch.tensor([5.0, 6.0], device=device); x[0] = torch.arange(5)
x.index_put_((torch.tensor([3, 3], device=device), torch.tensor([1, 1], device=device)), x[0, 1:3].clone(),
    accumulate=True)
out = x

# in-place operations on views
x = torch.zeros(4, 4, device=device)
x[1:3].add_(2); x.t()[0].mul_(3).sub_(1); x.view(-1)[::5] = 7; x.diagonal().clamp_(max=5); x.narrow(0, 3, 1).fill_(9)
out = [x, x._version > 4, x[1:]._base is x, x[1].data_ptr() - x.data_ptr(), x[1].storage_offset()]

# out arguments
x, y, z = normal(3, 4), torch.empty(0, device=device), torch.empty(3, 4, device=device)
torch.add(x, 1, out=y); torch.mm(x, x.t(), out=(w := torch.empty(3, 3, device=device)))
out = [y, w, torch.exp(x, out=z) is z, *torch.max(x, 1, out=(torch.empty(3, device=device), torch.empty(3,
    device=device).long()))]

# promotion with numbers and CPU scalars
x = torch.ones(3, device=device, dtype=torch.float16)
out = [x + torch.tensor(2.0, dtype=torch.float64), x * 3, x.int() / 2, x.int() * 2.5, torch.tensor(4) * x,
    x > torch.tensor(0)]
out += [torch.where(x > 0, x, torch.tensor(1.0, device=device)), torch.result_type(x, 1), x.int() + True, 2**x.int(),
    1 - x]

# gather and scatter
x, i = normal(4, 5), torch.tensor([[0, 1, 2, 0, 3], [3, 2, 1, 0, 0]], device=device)
out = [x.gather(0, i), torch.zeros_like(x).scatter_(0, i, x[:2]), torch.zeros_like(x).scatter_add_(0, i, x[:2])]
out += [x.scatter_reduce(0, i, x[:2], "amax"), x.index_select(1, i[0]), x.index_add(0, i[0, :2], x[:2]), x.take(i)]
out += [x.index_copy(0, i[0, :2], x[:2]), x.index_fill(1, i[1, :2], 0), torch.take_along_dim(x, i, 0)]

# sorting and searching
x = normal(4, 5)
out = [*x.sort(dim=1, descending=True), *x.topk(2), *x.kthvalue(2), x.argsort(0), x.argmax(), x.median(), *x.median(1)]
out += [torch.searchsorted(x.sort()[0], x), torch.bucketize(x, torch.tensor([-1.0, 0, 1], device=device)), x.msort()]

# counting
i = torch.tensor([3, 1, 3, 0, 1, 3], device=device)
out = [*i.unique(return_counts=True, return_inverse=True), *i.unique_consecutive(return_counts=True), i.bincount()]
out += [torch.histc(i.float(), 4), i.mode()[0], i.nonzero(), torch.isin(i, i[:2]), i.count_nonzero(), F.one_hot(i)]

# reductions
x = normal(4, 5)
out = [x.sum(), x.mean(0), x.std(), x.var(1, correction=0), x.prod(), x.norm(), x.amax((0, 1)), x.all(), x.any(1),
    x.logsumexp(1)]
out += [x.nansum(), *torch.aminmax(x), *torch.std_mean(x), x.quantile(0.5), x.cumsum(1), *x.cummax(0), x.diff(),
    torch.trapezoid(x)]

# shapes and strides
x = normal(2, 3, 4, 5)
y = x.to(memory_format=torch.channels_last)
out = [y.stride(), y.is_contiguous(), x.permute(3, 0, 2, 1).shape, x.unfold(3, 2, 1).shape,
    x.as_strided((2, 2), (1, 3)), x.mT.stride()]
out += [x.movedim(0, -1), x.flatten(1).stride(), x.expand(2, 2, 3, 4, 5).stride(), x.unflatten(2, (2, 2)).shape,
    x.nbytes]

# joining and splitting
x = normal(4, 6)
out = [*x.split([1, 3]), *x.chunk(4, 1), *x.unbind(), torch.stack([x, x], 1), torch.hstack([x, x]),
    torch.block_diag(x, x)]
out += [*x.tensor_split(3), torch.cat([x, x.half()]), x.tile(2), x.repeat_interleave(2, 0), x.roll(1, 0), x.flip(1),
    x.rot90()]

# products within 1e-5
x, y = normal(3, 4), normal(4, 5)
out = [x @ y, torch.einsum("ij,jk->ki", x, y), torch.tensordot(x, y, 1),
    torch.baddbmm(normal(2, 3, 5), x.expand(2, 3, 4), y.expand(2, 4, 5))]
out += [torch.outer(x[0], y[0]), torch.kron(x, y), torch.addmm(normal(3, 5), x, y, beta=0.5),
    torch.linalg.multi_dot([x, y, y.T]), x.mv(y[:, 0])]

# python numbers from tensors
x = torch.tensor([[1.5, -2.0]], device=device)
out = [x.tolist(), x[0, 0].item(), float(x[0, 1]), int(x[0, 0]), bool(x[0, 0] > 1), len(x), -2.0 in x,
    [r.tolist() for r in x]]
out += [f"{x[0, 0]:.2f}", f"{x.sum().item()}", range(3)[torch.tensor(1, device=device)], [10, 20][x[0, 0].long()],
    hash(x) == id(x)]

# numpy there and back
a = np.arange(6, dtype=np.float32).reshape(2, 3)
x = torch.from_numpy(a).to(device)
out = [x * 2, x.cpu().numpy().tolist(), np.asarray((x + 1).cpu()).sum().item(), torch.as_tensor(a, device=device),
    torch.tensor(a, device=device)]
out += [torch.tensor(np.float64(2.0), device=device), torch.asarray([1, 2], device=device),
    x.numpy(force=True).tolist()]

# factories
x = normal(2, 3)
out = [torch.arange(0, 1, 0.25, device=device), torch.linspace(0, 1, 3, device=device), torch.eye(2, device=device),
    torch.full_like(x, 2)]
out += [x.new_zeros(2), x.new_tensor([1, 2]), x.new_full((1,), 3), torch.tril(x),
    torch.triu_indices(3, 3, device=device), *torch.meshgrid(x[0], x[1], indexing="xy")]
out += [torch.tensor([], device=device), torch.empty(0, 3, device=device), torch.vander(x[0]), torch.combinations(x[0]),
    torch.zeros((), device=device)]

# the device as context and as default
with torch.device(device):
    x = torch.ones(3)
torch.set_default_device(device)
y = torch.arange(3) + x + nn.Linear(3, 3).weight.detach().zero_()[0]
torch.set_default_device(None)
out = [y, y.device.type == device, torch.ones(1).device.type, torch.get_default_device().type]

# default dtype
torch.set_default_dtype(torch.float64)
out = [torch.ones(3, device=device), torch.tensor([1.5], device=device) + 1,
    nn.Linear(2, 2, device=device).weight.dtype]

# types
x = torch.tensor([1.7, -3.2, 1000.0], device=device)
out = [x.half(), x.bfloat16(), x.int(), x.bool(), x[:2].to(torch.int8), x.double(), x.type(torch.float16).type_as(x)]
out += [x.to(torch.float8_e4m3fn).float(), x.view(torch.int32), x.to(torch.complex64), x.is_floating_point(),
    x.element_size()]

# integers and bits
x = torch.tensor([7, -3, 12], device=device)
out = [x // 2, x % 5, x & 6, x | 1, x ^ 3, ~x, x << 2, x >> 1, x.fmod(4), x.remainder(4), x.gcd(x * 2),
    torch.div(x, 2, rounding_mode="trunc"), -x, abs(x)]

# rounding and floats' parts
x = normal(5) * 10
out = [x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), *x.frexp(), torch.ldexp(x, x.int()), x.nextafter(x + 1),
    x.copysign(-x), x.sign(), x.round(decimals=1)]
out += [(x / 0).isinf(), (x * float("nan")).isnan(), torch.nan_to_num(x / 0, posinf=1.0), x.isclose(x + 1e-9),
    x.hypot(x), x.lerp(x + 1, 0.5), x.clip(-1, 1)]

# data, set_ and resize_
x, y = torch.ones(3, device=device), torch.zeros(5, device=device)
x.data = y.data * 2 + 1
y.set_(x); y.resize_(2, 2); y.requires_grad_()
out = [x, y[0], x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr(), y.untyped_storage().nbytes(),
    x.is_set_to(y)]

# storages
x = torch.arange(6, device=device, dtype=torch.float32)
s = x.untyped_storage()
out = [len(s), s.nbytes(), s.device.type == device, s.cpu().tolist()[:4], x.storage_offset(),
    x[2:].untyped_storage().data_ptr() == s.data_ptr()]
s.resize_(0); out += [s.nbytes()]

# copies
x = normal(2, 3)
y = torch.empty(2, 3).copy_(x); z = torch.empty(2, 3, device=device, dtype=torch.float64).copy_(y, non_blocking=True)
out = [y, z, copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x)),
    x.clone(memory_format=torch.preserve_format), x.to("cpu", copy=True), x.to(device) is x]

# equality and closeness
x, y = normal(3), normal(3)
torch.testing.assert_close(x, y)
out = [torch.equal(x, y), torch.allclose(x, y + 1e-9), x.eq(y), bool((x == y).all()), x.ne(y + 1), x.equal(y[:2])]

# printing numbers
out = [str(normal(3).tolist()), f"{normal(2).sum():.4f}", "%s" % torch.tensor(3, device=device).item(),
    str(torch.Size([2])), str(normal(2).cpu())]

# maps over lists
x = [normal(3), normal(2, 2)]
out = [torch._foreach_add(x, 1), torch._foreach_norm(x), torch._foreach_mul(x, x),
    torch._foreach_lerp(x, torch._foreach_sub(x, 1.0), 0.5)]
torch._foreach_zero_(x); out += [x]

# errors of shape and type
x = normal(2, 3)
out = [raised(RuntimeError, torch.mm, x, x), raised(IndexError, lambda: x[5]), raised(RuntimeError, x.view, 4),
    raised(RuntimeError, x.add_, normal(2, 2, 3))]
out += [raised(TypeError, torch.add, x, "1"), raised(RuntimeError, x.item),
    raised(RuntimeError, lambda: x.int().add_(1.5).normal_()), raised(AttributeError, lambda: x.nothing)]
""",
    "numbers": """
# complex numbers
x = torch.view_as_complex(normal(3, 4, 2))
out = [x, x.conj() * x, x.abs(), x.angle(), torch.view_as_real(x), x.H @ x, x.real, x.imag, x.is_conj(),
    torch.polar(x.abs(), x.angle()), x.conj().resolve_conj()]

# gradients of complex numbers
x = torch.view_as_complex(normal(3, 2)).requires_grad_()
(x.exp() * x.conj()).abs().sum().backward()
out = x.grad

# fourier transforms within 1e-5
x = normal(4, 8)
out = [torch.fft.fft(x), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fft2(x), torch.fft.fftshift(x),
    torch.fft.fftfreq(4, device=device), torch.fft.ihfft(x), torch.fft.rfftn(x)]

# short time fourier transform within 1e-5
w = torch.hann_window(8, device=device)
y = torch.stft(normal(2, 32), 8, hop_length=4, window=w, return_complex=True)
out = [y, torch.istft(y, 8, hop_length=4, window=w)]

# linear algebra: factors within 1e-5
a = normal(4, 4); s = a @ a.T + torch.eye(4, device=device)
out = [torch.linalg.cholesky(s), torch.linalg.eigvalsh(s), torch.linalg.svdvals(a), *torch.linalg.slogdet(s),
    torch.linalg.det(a), torch.linalg.cond(s)]
q, r = torch.linalg.qr(a); u, d, v = torch.linalg.svd(a); p, l, m = torch.linalg.lu(a)
out += [q @ r, u @ torch.diag(d) @ v, p @ l @ m, torch.linalg.matrix_rank(s), torch.linalg.vander(a[0])]

# linear algebra: solving within 1e-4
a = normal(4, 4) + 4 * torch.eye(4, device=device)
out = [torch.linalg.solve(a, a[0]), torch.linalg.inv(a), torch.linalg.pinv(a), torch.linalg.lstsq(a, a).solution,
    torch.linalg.matrix_exp(a / 9), torch.cholesky_inverse(a)]
out += [torch.linalg.solve_triangular(a.triu(), a, upper=True), torch.linalg.matrix_power(a, 3),
    torch.lu_solve(a, *torch.linalg.lu_factor(a)), torch.linalg.eig(a)[0].abs().sum()]

# gradient of a decomposition within 1e-4
a = (normal(4, 4) + 4 * torch.eye(4, device=device)).requires_grad_()
(torch.linalg.svdvals(a).sum() + torch.logdet(a @ a.T) + torch.linalg.inv(a).norm()).backward()
out = a.grad

# special functions
x = torch.linspace(0.1, 2, 5, device=device)
out = [torch.special.erf(x), x.lgamma(), x.digamma(), torch.special.i0e(x), torch.special.zeta(x + 1, x),
    torch.special.xlogy(x, x), x.logit(0.1), x.polygamma(1), x.sinc()]
out += [torch.special.ndtri(x / 3), torch.special.expit(x), torch.special.entr(x), torch.special.bessel_j0(x),
    torch.special.gammainc(x, x), x.mvlgamma(1), x.erfinv()]

# distances and neighbours within 1e-5
x, y = normal(4, 3), normal(5, 3) + 1
out = [torch.cdist(x, y), F.pdist(x), F.cosine_similarity(x[0], y, dim=-1), F.pairwise_distance(x, y[:4]),
    torch.dist(x, y[:4]), torch.cov(x.T), torch.corrcoef(x), torch.linalg.cross(x, y[:4])]

# distributions
d = torch.distributions
p = d.Normal(normal(3), normal(3).exp()); q = d.Categorical(logits=normal(3, 4))
m = d.MultivariateNormal(normal(2), torch.eye(2, device=device))
out = [p.log_prob(normal(3)), q.entropy(), d.kl_divergence(p, p), m.log_prob(normal(2)), q.sample().shape,
    p.rsample((2,)).device.type == device, d.Beta(p.stddev, p.stddev).sample().shape]

# random functions: shapes and ranges
x = torch.rand(100, device=device)
out = [bool((x >= 0).all() and (x < 1).all()), torch.randperm(9, device=device).sort()[0],
    torch.randint(3, 5, (20,), device=device).unique(), torch.bernoulli(torch.ones(3, device=device))]
out += [torch.multinomial(torch.tensor([0.0, 1.0, 0.0], device=device), 4, True), x.normal_().shape,
    x.uniform_(2, 3).floor(), x.exponential_().min() >= 0, x.geometric_(0.5).min(), x.random_(1, 2)]

# seeds repeat
torch.manual_seed(3); a = torch.randn(5, device=device)
torch.manual_seed(3); b = torch.randn(5, device=device)
g = torch.Generator(device).manual_seed(3); c = torch.randn(5, device=device, generator=g); state = g.get_state()
d = torch.rand(2, device=device, generator=g)
g.set_state(state)
out = [torch.equal(a, b), torch.equal(b, c), torch.equal(d, torch.rand(2, device=device, generator=g)),
    g.initial_seed(), g.clone_state().initial_seed(), torch.initial_seed()]

# fork_rng puts the state back
with torch.random.fork_rng(devices=[0] if device == "cuda" else []):
    a = torch.rand(3, device=device)
out = [torch.equal(a, torch.rand(3, device=device)), torch.equal(a, torch.rand(3, device=device))]
""",
    "autograd": """
# backward and grad
x = normal(3).requires_grad_()
y = (x.exp() * x).sum()
y.backward(retain_graph=True); y.backward()
out = [x.grad, *torch.autograd.grad(x.pow(3).sum(), x), x.grad.device == x.device, y.grad_fn.name(), x.is_leaf]

# double backward
x = normal(3).requires_grad_()
(g,) = torch.autograd.grad(x.sin().pow(2).sum(), x, create_graph=True)
g.norm().backward()
out = [g, x.grad]

# no_grad, inference_mode and detach
x = normal(3).requires_grad_()
with torch.no_grad(): a = x * 2
with torch.inference_mode(): b = x * 3
with torch.set_grad_enabled(False), torch.enable_grad(): c = x * 4
out = [a.requires_grad, b.is_inference(), c.requires_grad, x.detach().requires_grad,
    raised(RuntimeError, lambda: (b * x).sum().backward()), a, b.clone(), c]

# hooks of tensors
x = normal(3).requires_grad_(); seen = []
h = x.register_hook(lambda g: g * 2); x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
y = x * 3; y.retain_grad(); y.register_hook(lambda g: seen.append(g)); y.sum().backward(); h.remove()
(x * 1).sum().backward()
out = [seen, x.grad, y.grad]

# optimiser step in the backward pass
m = mlp(); o = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}
def step(p): o[p].step(); o[p].zero_grad()
for p in m.parameters(): p.register_post_accumulate_grad_hook(step)
m(normal(5, 4)).sum().backward()
out = [list(m.parameters()), [p.grad is None for p in m.parameters()]]

# multi-grad hook and node hooks
from torch.autograd.graph import register_multi_grad_hook
x, y = normal(3).requires_grad_(), normal(3).requires_grad_(); seen = []
register_multi_grad_hook((x, y), lambda gs: seen.append([g.clone() for g in gs])); z = (x * y).sum()
z.grad_fn.register_hook(lambda i, o: seen.append(len(i)))
z.backward()
out = seen

# forward and backward hooks of modules
m = mlp(); seen = []
m[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,)); m[0].register_forward_hook(lambda m, a, o: o + 1)
m[2].register_full_backward_hook(lambda m, i, o: seen.append([*i, *o]))
m[2].register_full_backward_pre_hook(lambda m, o: (o[0] * 3,))
m.register_forward_hook(lambda m, a, k, o: o * 2, with_kwargs=True)
m(normal(5, 4)).sum().backward()
out = [seen, [p.grad for p in m.parameters()]]

# global module hooks
seen = []
h = nn.modules.module.register_module_forward_hook(lambda m, a, o: seen.append(type(m).__name__))
with contextlib.closing(contextlib.ExitStack()) as stack:
    stack.callback(h.remove); y = mlp()(normal(1, 4))
out = [seen, y]

# a Function of the older kind
class Cube(torch.autograd.Function):
    forward = staticmethod(lambda c, x, k: (c.save_for_backward(x), setattr(c, "k", k), k * x**3)[2])
    backward = staticmethod(lambda c, g: (3 * c.k * c.saved_tensors[0] ** 2 * g, None))
x = normal(3).requires_grad_(); Cube.apply(x, 2).sum().backward()
out = x.grad

# a Function with setup_context under vmap and grad
class Twice(torch.autograd.Function):
    generate_vmap_rule = True
    forward, setup_context = staticmethod(lambda x: x * 2 + x.sin()), staticmethod(lambda c, i,
        o: c.save_for_backward(i[0]))
    backward = staticmethod(lambda c, g: g * (2 + c.saved_tensors[0].cos()))
out = [torch.vmap(Twice.apply)(normal(3, 2)), torch.vmap(torch.func.grad(lambda x: Twice.apply(x).sum()))(normal(3, 2))]

# once_differentiable, mark_dirty and non-differentiable
class Shift(torch.autograd.Function):
    forward = staticmethod(lambda c, x: (c.mark_dirty(x), x.add_(1))[1])
    backward = staticmethod(torch.autograd.function.once_differentiable(lambda c, g: g * 5))
x = normal(3).requires_grad_(); y = Shift.apply(x * 1); y.sum().backward()
out = [y, x.grad, torch.autograd.gradcheck(lambda v: v.sin() * v, normal(3, dtype=torch.float64).requires_grad_())]

# errors of autograd
x = normal(3).requires_grad_(); y = x.exp(); y.add_(1); z = x * 2; z.sum().backward()
out = [raised(RuntimeError, y.sum().backward).split("[")[0], raised(RuntimeError, lambda: x.add_(1)),
    raised(RuntimeError, (x * x).backward), raised(RuntimeError, x.cpu().numpy)]
(w := (x * x).sum()).backward(); out += [raised(RuntimeError, w.backward)[:60]]

# anomaly mode names the forward
x = torch.zeros(2, device=device, requires_grad=True)
with torch.autograd.set_detect_anomaly(True):
    out = raised(RuntimeError, (x / x.detach() * 0).sqrt().sum().backward)

# forward-mode derivatives
import torch.autograd.forward_ad as fwAD
with fwAD.dual_level():
    d = fwAD.make_dual(normal(3), torch.ones(3, device=device))
    out = list(fwAD.unpack_dual(d.sin() * d))

# functional jacobian and hessian
f = lambda x: (x**3).sum() * x[0]
out = [torch.autograd.functional.hessian(f, normal(3)), torch.autograd.functional.jacobian(torch.sin, normal(3)),
    *torch.autograd.functional.vjp(f, normal(3)), *torch.autograd.functional.hvp(f, normal(3), normal(3))]

# checkpointing of both kinds
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
m = mlp(); x = normal(5, 4).requires_grad_(); out = []
for kind in (True, False):
    m.zero_grad(); checkpoint(m, x, use_reentrant=kind).sum().backward()
    out += [p.grad.clone() for p in m.parameters()]
checkpoint_sequential(m, 2, x, use_reentrant=False).sum().backward(); out += [x.grad]

# checkpointing keeps the dropout
from torch.utils.checkpoint import checkpoint
x = torch.ones(64, device=device, requires_grad=True)
y = checkpoint(lambda v: F.dropout(v, 0.5) * v, x, use_reentrant=False); y.sum().backward()
out = [torch.equal(x.grad, 2 * y), sorted(set(y.tolist()))]

# selective checkpointing
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts as contexts
keep = lambda c, op, *a, **k: CheckpointPolicy(0 if op == torch.ops.aten.mm.default else 3)
x = normal(3, 3).requires_grad_()
checkpoint(lambda v: (v @ v).sin() @ v, x, use_reentrant=False, context_fn=lambda: contexts(keep)).sum().backward()
out = x.grad

# saved tensors' hooks
x = normal(3).requires_grad_(); seen = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(tuple(t.shape)), t.cpu())[1],
    lambda t: t.to(device)):
    y = x.exp() * x
y.sum().backward()
out = [seen, x.grad]

# save_on_cpu
x = normal(3).requires_grad_()
with torch.autograd.graph.save_on_cpu(pin_memory=False):
    y = (x * x).exp()
saved = y.grad_fn._saved_result; y.sum().backward()
out = [x.grad, saved.shape]

# save_on_cpu in pinned memory
x = normal(3).requires_grad_()
with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
    y = (x * x).exp().sin()
y.sum().backward(); out = x.grad
""",
    "functions": """
# grad, vjp and jvp
from torch.func import grad, jvp, vjp
f = lambda x: (x.sin() * x).sum()
y, pull = vjp(f, normal(3))
out = [grad(f)(normal(3)), grad(lambda x: grad(f)(x).sum())(normal(3)), y, *pull(torch.tensor(2.0, device=device)),
    *jvp(f, (normal(3),), (normal(3),))]

# jacobians and hessians
from torch.func import hessian, jacfwd, jacrev, linearize
f = lambda x: x**3 * x.sum()
y, push = linearize(f, normal(3))
out = [jacrev(f)(normal(3)), jacfwd(f)(normal(3)), hessian(lambda x: f(x).sum())(normal(3)), y, push(normal(3))]

# gradients of each sample
from torch.func import functional_call, grad, vmap
m = mlp(); p = dict(m.named_parameters())
loss = lambda p, x, y: F.cross_entropy(functional_call(m, p, (x[None],)), y[None])
out = vmap(grad(loss), (None, 0, 0))(p, normal(5, 4), torch.tensor([0, 1, 1, 0, 1], device=device))

# model ensembling
from torch.func import functional_call, stack_module_state, vmap
ms = [mlp() for _ in range(3)]; p, b = stack_module_state(ms); base = copy.deepcopy(ms[0]).to("meta")
out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), (0, 0, None))(p, b, normal(5, 4))

# vmap over axes and nested
x, y = normal(3, 4), normal(4, 3)
out = [torch.vmap(torch.dot, (0, 1))(x, y), torch.vmap(torch.vmap(torch.mul, (0, None)), (0, None))(x, y[:, 0]),
    torch.vmap(lambda v: v.sort()[0], out_dims=1)(x), torch.vmap(torch.sum, chunk_size=2)(x)]

# vmap with randomness
f = lambda v: v + torch.rand_like(v)
x = torch.zeros(3, 2, device=device)
a, b = torch.vmap(f, randomness="same")(x), torch.vmap(f, randomness="different")(x)
out = [bool((a == a[0]).all()), bool((b == b[0]).all()), raised(RuntimeError, torch.vmap(f), x)[:60]]

# functionalize and make_fx
from torch.fx.experimental.proxy_tensor import make_fx
f = torch.func.functionalize(lambda x: x.clone().add_(1).view(-1).mul_(2))
g = make_fx(f)(normal(2, 2))
out = [g(normal(2, 2)), [str(n.target) for n in g.graph.nodes]]

# symbolic tracing
m = torch.fx.symbolic_trace(mlp())
shapes = torch.fx.passes.shape_prop.ShapeProp(m).propagate(normal(5, 4)).shape
out = [m(normal(5, 4)), m.code, shapes, [n.op for n in m.graph.nodes]]

# conditions
f = lambda p, x: torch.cond(p, lambda v: v.sin(), lambda v: v.cos(), (x,))
out = [f(torch.tensor(True, device=device), normal(3)), f(torch.tensor(False, device=device), normal(3))]

# loops
from torch._higher_order_ops import while_loop
out = list(while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2),
    (torch.zeros((), dtype=torch.int64, device=device), normal(3))))

# scans
from torch._higher_order_ops.associative_scan import associative_scan
out = associative_scan(lambda a, b: a + b, normal(4, 3), 0, combine_mode="generic")
""",
    "modes": """
# a dispatch mode that counts
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    def __torch_dispatch__(self, f, types, args=(), kwargs=None): seen.append(str(f)); return f(*args, **(kwargs or {}))
seen = []; m, x = mlp(), normal(5, 4)
with Count(): y = m(x).relu().sum()
out = [seen, y]

# a dispatch mode that changes
from torch.utils._python_dispatch import TorchDispatchMode
class Round(TorchDispatchMode):
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        r = f(*args, **(kwargs or {})); return r.round() if f is torch.ops.aten.mul.Tensor else r
x = normal(3).requires_grad_()
with Round(): y = x * 3
out = [y]

# a function mode
from torch.overrides import TorchFunctionMode
class Names(TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), kwargs=None):
        seen.append(getattr(f, "__name__", "?")); return f(*args, **(kwargs or {}))
seen = []
with Names(): y = F.linear(torch.ones(2, 3).to(device), torch.ones(4, 3, device=device)).sum()
out = [seen, y]

# counting operations
from torch.utils.flop_counter import FlopCounterMode
m = mlp()
with FlopCounterMode(display=False) as f: m(normal(5, 4)).sum().backward()
out = [f.get_total_flops(), sorted(f.get_flop_counts()["Global"].values())]

# a __torch_function__ subclass
class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        seen.append(f.__name__); return super().__torch_function__(f, types, args, kwargs or {})
seen = []; x = normal(3).as_subclass(Tagged); y = (x + 1).relu().sum()
out = [seen, type(y).__name__, y.as_subclass(torch.Tensor), type(x[0]).__name__, x.device.type == device]

# a wrapper subclass: weights in 8 bits
class Int8(torch.Tensor):
    __new__ = staticmethod(lambda cls, q, s: torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=s.dtype,
        device=q.device))
    __init__ = lambda self, q, s: self.__dict__.update(q=q, s=s)
    __torch_dispatch__ = classmethod(lambda cls, f, types, args=(),
        kw=None: f(*[a.q.to(a.s.dtype) * a.s if isinstance(a, Int8) else a for a in args],
        **(kw or {})) if f is not torch.ops.aten.detach.default else Int8(args[0].q, args[0].s))
w = normal(4, 3); s = w.abs().amax(1, keepdim=True) / 127; m = nn.Linear(3, 4, bias=False).to(device)
m.weight = nn.Parameter(Int8((w / s).round().to(torch.int8), s), requires_grad=False)
out = [m(normal(2, 3)), m.weight.device.type == device, m.weight.data.q, m.weight.shape,
    F.linear(normal(2, 3).requires_grad_(), m.weight).requires_grad]

# a wrapper subclass that counts its operations
from torch.utils._pytree import tree_map_only as tree_map
class Logged(torch.Tensor):
    __new__ = staticmethod(lambda cls, x: torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype,
        device=x.device, strides=x.stride()))
    __init__ = lambda self, x: setattr(self, "x", x)
    __torch_dispatch__ = classmethod(lambda cls, f, types, args=(),
        kw=None: (seen.append(str(f)), tree_map(torch.Tensor, Logged, f(*tree_map(Logged, lambda t: t.x, args),
        **tree_map(Logged, lambda t: t.x, kw or {}))))[1])
seen = []; x = Logged(normal(2, 2)); y = (x @ x + 1).t().sum()
out = [seen, y.x, y.device.type == device]

# fake tensors
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    y = nn.Linear(4, 2, device=device)(torch.empty(3, 4, device=device))
    z = torch.ones(2).to(device) + 1
out = [y.shape, y.device, y.dtype, y.stride(), type(y).__name__, z.device, y.is_cuda == (device == "cuda")]

# fake copies of real tensors
from torch._subclasses.fake_tensor import FakeTensorMode
real = normal(3, 4); m = mlp(); mode = FakeTensorMode(allow_non_fake_inputs=True)
fake = mode.from_tensor(real)
with mode: y = m(fake) * 2; z = fake @ fake.T
out = [y.shape, y.device, z.shape, z.device, real.sum(), mode.from_tensor(torch.ones(2)).device]

# fake tensors refuse data
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    x = torch.rand(3, device=device)
    y = F.conv2d(torch.rand(1, 3, 8, 8, device=device), torch.rand(4, 3, 3, 3, device=device)); c = torch.ones(2)
    out = [type(raised(Exception, x.item)).__name__, y.shape, y.device, y.cpu().device, c.device, x.sum().requires_grad]

# deferred initialisation on meta
with torch.device("meta"): m = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
m = m.to_empty(device=device)
for p in m.parameters(): nn.init.constant_(p, 0.5)
m[1].reset_running_stats(); m.load_state_dict(m.state_dict(), assign=True)
out = [m(normal(5, 4)), m.state_dict()]

# meta tensors compute shapes
x = torch.empty(10**6, 10**6, device="meta") @ torch.empty(10**6, 3, device="meta")
out = [x.shape, x.is_meta, raised(NotImplementedError, x.to, device)[:40], torch.empty_like(x[:2], device=device).shape,
    torch.nn.utils.skip_init(nn.Linear, 2, 3, device=device).weight.shape]
""",
    "layers": """
# convolutions within 1e-5
m = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, 2),
    nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)).to(device)
x = normal(2, 3, 8, 8).requires_grad_(); y = m(x); y.sum().backward()
out = [y, x.grad, m.state_dict(), m.eval()(x), m.to(memory_format=torch.channels_last)(x)]

# other convolutions within 1e-5
x = normal(2, 4, 9)
out = [nn.Conv1d(4, 6, 3, groups=2, dilation=2).to(device)(x), F.conv3d(normal(1, 2, 4, 4, 4), normal(3, 2, 2, 2, 2)),
    F.unfold(normal(1, 2, 4, 4), 2), F.fold(normal(1, 8, 4), (3, 3), 2), F.conv1d(x, normal(4, 1, 3), groups=4,
    padding="same")]

# norms within 1e-5
x = normal(3, 4, 5)
out = [F.layer_norm(x, (5,)), F.group_norm(x, 2), F.instance_norm(x), F.rms_norm(x, (5,)), F.normalize(x),
    nn.LocalResponseNorm(2)(x), nn.BatchNorm1d(4).to(device)(x)]

# activations within 1e-6
x = normal(3, 4)
out = [f(x) for f in (F.gelu, F.silu, F.mish, F.elu, F.celu, F.selu, F.softplus, F.hardswish, F.leaky_relu,
    F.logsigmoid, F.softsign, F.tanhshrink, F.glu, F.relu6, F.hardtanh)]
out += [F.softmax(x, -1), F.log_softmax(x, 0), F.prelu(x, x[0, :1]), F.threshold(x, 0.1, 20), F.softmin(x, 1),
    F.gumbel_softmax(x, hard=True).sum()]

# losses within 1e-5
x, y, c = normal(4, 3).requires_grad_(), normal(4, 3).sigmoid(), torch.tensor([0, 2, 1, -100], device=device)
out = [F.cross_entropy(x, c, label_smoothing=0.1), F.mse_loss(x, y), F.l1_loss(x, y),
    F.binary_cross_entropy(x.sigmoid(), y), F.binary_cross_entropy_with_logits(x, y), F.kl_div(F.log_softmax(x, 1), y),
    F.nll_loss(x, c)]
out += [F.huber_loss(x, y), F.smooth_l1_loss(x, y), F.triplet_margin_loss(x, y, -y),
    F.cosine_embedding_loss(x, y, torch.ones(4, device=device)), F.poisson_nll_loss(x, y), F.gaussian_nll_loss(x, y, y),
    F.multi_margin_loss(x[:3], c[:3])]
sum(out).backward(); out += [x.grad]

# ctc loss within 1e-5
x = normal(6, 2, 5).log_softmax(2).requires_grad_()
y = F.ctc_loss(x, torch.tensor([[1, 2], [3, 4]], device=device), torch.tensor([6, 6]), torch.tensor([2, 2]))
y.backward()
out = [y, x.grad]

# embeddings
e = nn.Embedding(6, 3, padding_idx=0, max_norm=1.0).to(device); i = torch.tensor([[0, 2], [5, 2]], device=device)
y = e(i); y.sum().backward()
out = [y, e.weight.grad, F.embedding_bag(i, e.weight, mode="sum"),
    nn.EmbeddingBag.from_pretrained(e.weight.detach())(i[0], i[0, :1] * 0)]

# recurrent networks within 1e-5
m, g = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True).to(device), nn.GRU(4, 3).to(device)
y, (h, c) = m(normal(2, 6, 4)); z, k = g(normal(6, 2, 4)); (y.sum() + z.sum()).backward()
out = [y, h, c, z, k, [p.grad for p in m.parameters()], nn.LSTMCell(4, 3).to(device)(normal(2, 4)),
    nn.RNN(4, 3).to(device)(normal(6, 2, 4))]

# packed sequences within 1e-5
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence, unpad_sequence
p = pack_padded_sequence(normal(3, 5, 4), torch.tensor([5, 2, 4]), batch_first=True, enforce_sorted=False)
y, _ = nn.GRU(4, 3, batch_first=True).to(device)(p); y, n = pad_packed_sequence(y, batch_first=True)
out = [y, n, n.device.type, p.is_cuda == (device == "cuda"), p.batch_sizes,
    pad_sequence([normal(2), normal(3)], True, -1.0), pack_sequence([normal(3), normal(2)]).data, unpad_sequence(y, n,
    True)]

# multi-head attention within 1e-5
m = nn.MultiheadAttention(8, 2, batch_first=True).to(device); x = normal(2, 5, 8)
mask = nn.Transformer.generate_square_subsequent_mask(5, device=device)
a = m(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]; a.sum().backward()
pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
out = [a, m.in_proj_weight.grad, *m(x, x, x, key_padding_mask=pad), m.eval()(x, x, x, average_attn_weights=False)[1]]

# transformer in training and in evaluation within 1e-5
m = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2).to(device)
x = normal(2, 5, 8)
y = m(x); y.sum().backward(); pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
g = [p.grad.clone() for p in m.parameters()]
with torch.no_grad(): out = [y, g, m.eval()(x), m(x, src_key_padding_mask=pad)]

# encoder and decoder within 1e-5
m = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(device)
y = m(normal(2, 5, 8), normal(2, 4, 8), tgt_is_causal=True, tgt_mask=m.generate_square_subsequent_mask(4,
    device=device))
y.sum().backward()
out = [y, m.encoder.layers[0].linear1.weight.grad]

# scaled dot product attention within 1e-5
q, k, v = (normal(2, 4, 5, 8) * s for s in (1, 0.5, 2)); q.requires_grad_(); f = F.scaled_dot_product_attention
out = [f(q, k, v), f(q, k, v, is_causal=True), f(q, k, v, attn_mask=normal(5, 5)), f(q, k, v, normal(5, 5) > 0),
    f(q, k[:, :2], v[:, :2], enable_gqa=True, scale=0.1)]
sum(o.nan_to_num().sum() for o in out).backward(); out += [q.grad]

# attention with the math kernel within 1e-5
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
q = normal(2, 4, 5, 8)
with sdpa_kernel([SDPBackend.MATH]):
    out = [F.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q[:, :, :3], q, q,
        causal_lower_right(3, 5))]

# flex attention within 1e-5
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
q = normal(1, 2, 128, 16); mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device=device)
out = [flex_attention(q, q, q, lambda s, b, h, i, j: s + (i - j) * 0.01), flex_attention(q, q, q, block_mask=mask),
    mask.kv_num_blocks]

# images
x = normal(1, 2, 4, 4); grid = F.affine_grid(torch.eye(2, 3, device=device)[None], (1, 2, 3, 3), align_corners=False)
out = [F.interpolate(x, scale_factor=2, mode=m) for m in ("nearest", "bilinear", "bicubic", "area")] + [F.grid_sample(x,
    grid, align_corners=False), F.pixel_shuffle(normal(1, 4, 2, 2), 2), F.pad(x, (1, 1, 1, 1), "reflect")]

# dropout keeps and scales
x = torch.ones(1000, device=device); y = F.dropout(x, 0.5)
out = [sorted(set(y.tolist())), 300 < (y > 0).sum().item() < 700, nn.Dropout(0.5).eval()(x),
    F.dropout2d(torch.ones(1, 9, 2, 2, device=device), 0.5).std((2, 3)), F.alpha_dropout(x, 0.0)]

# initialisation by hand
m = nn.Linear(3, 2, device=device)
nn.init.xavier_uniform_(m.weight); a = m.weight.abs().max().item() < 1.2; nn.init.orthogonal_(m.weight)
b = (m.weight @ m.weight.T).round(decimals=3).abs(); nn.init.eye_(m.weight); nn.init.trunc_normal_(m.bias)
out = [a, b, m.weight, m.bias.device.type == device, nn.init.calculate_gain("relu")]

# modules travel
m = mlp(); ids = [id(p) for p in m.parameters()]; m.double().to("cpu").float().to(device)
m.register_buffer("b", torch.ones(1))
out = [[id(p) for p in m.parameters()] == ids, next(m.parameters()).device.type == device, m.b.device.type,
    m.to(device).b.device.type == device, m.half()[0].weight, str(m)]

# state dicts strict and not
m = mlp(); s = m.state_dict(); k = s.pop("0.bias")
out = [raised(RuntimeError, m.load_state_dict, s), str(m.load_state_dict(s, strict=False)), s,
    raised(RuntimeError, m.load_state_dict, {**s, "0.bias": k[:2]})]

# lazy modules
m = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to(device); x = normal(5, 4)
y = m(x).shape; nn.init.ones_(m[0].weight); nn.init.zeros_(m[0].bias)
out = [y, type(m[0]).__name__, m[0](x), m[0].weight.device]

# parametrizations
from torch.nn.utils import parametrizations as P, parametrize
m = nn.Linear(3, 3).to(device); a = P.weight_norm(nn.Linear(3, 3).to(device))
o = P.orthogonal(nn.Linear(3, 3).to(device), orthogonal_map="cayley")
class Sym(nn.Module): forward = lambda self, w: w.triu() + w.triu(1).T
parametrize.register_parametrization(m, "weight", Sym()); a(normal(2, 3)).sum().backward()
out = [m.weight, a.parametrizations.weight.original0.grad, (o.weight @ o.weight.T).round(decimals=4).abs(),
    parametrize.remove_parametrizations(m, "weight").weight]

# spectral norm
m = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3).to(device), n_power_iterations=30)
out = [torch.linalg.matrix_norm(m.weight, 2).round(decimals=3), m.parametrizations.weight[0]._u.device.type == device]

# older weight norm
m = nn.utils.weight_norm(nn.Linear(3, 2).to(device)); y = m(normal(2, 3)); y.sum().backward()
out = [y, m.weight_g.grad, m.weight_v.grad, nn.utils.remove_weight_norm(m).weight]

# pruning
from torch.nn.utils import prune
m = nn.Linear(4, 3).to(device); prune.l1_unstructured(m, "weight", 0.5); prune.ln_structured(m, "weight", 1, n=2, dim=0)
y = m(normal(2, 4))
prune.remove(m, "weight"); out = [y, m.weight, list(dict(m.named_buffers())), prune.is_pruned(m)]

# clipping and vectors of parameters
m = mlp(); m(normal(5, 4)).pow(2).sum().backward(); v = nn.utils.parameters_to_vector(m.parameters())
out = [nn.utils.clip_grad_norm_(m.parameters(), 0.1), [p.grad.clone() for p in m.parameters()], v,
    nn.utils.get_total_norm(m.parameters())]
nn.utils.clip_grad_value_(m.parameters(), 0.01); nn.utils.vector_to_parameters(v * 2, m.parameters())
out += [m[0].weight, m[0].weight.grad]

# fusing for inference within 1e-5
m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(device).eval(); x = normal(1, 3, 5, 5)
out = [m(x), nn.utils.fuse_conv_bn_eval(m[0], m[1])(x)]

# containers
m = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2)]), "p": nn.ParameterList([torch.ones(2)])}).to(device)
m.p.append(nn.Parameter(torch.zeros(1, device=device)))
out = [[n for n, _ in m.named_parameters()], {p.device.type == device for p in m.parameters()} == {True},
    sum(p.numel() for p in m.parameters()), m.p[0] * 2, m.requires_grad_(False).p[0].requires_grad]
""",
    "training": """
# every optimiser, with gradients in groups and alone within 1e-5
O = torch.optim; out = {}
for c, kw in ((O.SGD, {"momentum": 0.9, "nesterov": True}), (O.Adam, {"amsgrad": True}), (O.AdamW, {}),
    (O.RMSprop, {"centered": True}), (O.Adagrad, {}), (O.Adadelta, {}), (O.NAdam, {}), (O.RAdam, {}), (O.Adamax, {}),
    (O.ASGD, {}), (O.Rprop, {})):
    for foreach in (False, True):
        torch.manual_seed(1); m = mlp(); o = c(m.parameters(), lr=0.01, foreach=foreach, **kw)
        for _ in range(2): o.zero_grad(); m(normal(5, 4)).pow(2).sum().backward(); o.step()
        out[c.__name__, foreach] = [p.detach().clone() for p in m.parameters()]

# fused optimisers within 1e-5
out = {}
for c in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
    torch.manual_seed(1); m = mlp(); o = c(m.parameters(), lr=0.01, fused=True)
    for _ in range(2): o.zero_grad(); m(normal(5, 4)).pow(2).sum().backward(); o.step()
    out[c.__name__] = [p.detach().clone() for p in m.parameters()]

# LBFGS within 1e-4
x = normal(4).requires_grad_(); o = torch.optim.LBFGS([x], lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
def closure(): o.zero_grad(); loss = ((x - 1) ** 4).sum() + x.sum() ** 2; loss.backward(); return loss
out = [o.step(closure), o.step(closure), x]

# Muon within 1e-2
w = normal(6, 4).requires_grad_(); o = torch.optim.Muon([w], lr=0.1)
(w**2).sum().backward(); o.step(); out = w

# Adafactor within 1e-5
m = mlp(); o = torch.optim.Adafactor(m.parameters(), lr=0.01)
m(normal(5, 4)).pow(2).sum().backward(); o.step(); out = list(m.parameters())

# sparse gradients and SparseAdam
e = nn.Embedding(6, 3, sparse=True).to(device); o = torch.optim.SparseAdam(e.parameters(), lr=0.1)
e(torch.tensor([1, 4, 1], device=device)).pow(2).sum().backward(); g = e.weight.grad; o.step()
out = [g.is_sparse, g.coalesce().values(), g.coalesce().indices(), e.weight]

# optimisers' state saved and loaded
m = mlp(); o = torch.optim.AdamW([{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters()}], lr=0.01)
m(normal(5, 4)).sum().backward(); o.step(); torch.save(o.state_dict(), f := io.BytesIO()); f.seek(0)
o2 = torch.optim.AdamW([{"params": m[0].parameters()}, {"params": m[2].parameters()}])
o2.load_state_dict(torch.load(f, map_location=device)); o2.step()
out = [list(m.parameters()), o2.state_dict(), o.state[m[0].weight]["step"].device.type,
    o.state[m[0].weight]["exp_avg"].device.type == device]

# optimisers' hooks, closures and groups
x = normal(3).requires_grad_(); o = torch.optim.SGD([x], 0.1, weight_decay=0.1, maximize=True); seen = []
o.register_step_pre_hook(lambda o, a, k: seen.append("before"))
o.register_step_post_hook(lambda o, a, k: seen.append("after"))
o.add_param_group({"params": [y := normal(2).requires_grad_()], "lr": 1.0}); (x.sum() * y.sum()).backward(); o.step()
o.zero_grad(set_to_none=False)
out = [x, y, seen, x.grad, str(o)]

# schedules
S = torch.optim.lr_scheduler; x = nn.Parameter(normal(2)); out = []
for make in (lambda o: S.OneCycleLR(o, 1.0, total_steps=9), lambda o: S.CosineAnnealingWarmRestarts(o, 3),
    lambda o: S.SequentialLR(o, [S.LinearLR(o), S.ExponentialLR(o, 0.9)], [2]), lambda o: S.CyclicLR(o, 0.1, 1.0),
    lambda o: S.LambdaLR(o, lambda e: 0.9**e)):
    o = torch.optim.SGD([x], 0.5, momentum=0.9); s = make(o); x.grad = torch.ones(2, device=device)
    for _ in range(4): o.step(); s.step(); out.append(s.get_last_lr()[0])
p = S.ReduceLROnPlateau(o, patience=0); [p.step(torch.tensor(v, device=device)) for v in (1.0, 2.0, 3.0)]
out += [o.param_groups[0]["lr"], x]

# a learning rate that is a tensor within 1e-6
x = normal(3).requires_grad_()
o = torch.optim.Adam([x], lr=torch.tensor(0.1, device=device), capturable=device == "cuda", foreach=False)
x.pow(2).sum().backward(); o.step(); out = [x, o.param_groups[0]["lr"]]

# averaged models within 1e-6
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
m = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device); o = torch.optim.SGD(m.parameters(), 0.1)
a, e = AveragedModel(m), AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True); s = SWALR(o, 0.05)
for _ in range(3):
    o.zero_grad(); m(normal(5, 4)).pow(2).sum().backward(); o.step(); a.update_parameters(m); e.update_parameters(m)
    s.step()
update_bn([normal(5, 4)], a, device=device); out = [a.state_dict(), e.state_dict(), a(normal(5, 4))]

# a training loop of a lesson within 1e-5
m = mlp(); o = torch.optim.Adam(m.parameters()); x, y = normal(32, 4), (normal(32, 4).sum(1) > 0).long(); losses = []
for i in range(0, 32, 8):
    loss = F.cross_entropy(m(x[i : i + 8]), y[i : i + 8]); o.zero_grad(); loss.backward(); o.step()
    losses.append(loss.item())
with torch.no_grad(): right = (m.eval()(x).argmax(1) == y).float().mean().item()
out = [losses, right]

# accumulated gradients and frozen layers
m = mlp(); m[0].requires_grad_(False); o = torch.optim.SGD(filter(lambda p: p.requires_grad, m.parameters()), 0.1)
for part in normal(8, 4).chunk(4): (m(part).mean() / 4).backward()
o.step(); out = [m.state_dict(), m[0].weight.grad, [p.grad for p in m[2].parameters()]]

# saved and loaded elsewhere
m = mlp(); torch.save({"m": m.state_dict(), "x": normal(3)[1:], "i": 3}, f := io.BytesIO())
def load(**kw): f.seek(0); return torch.load(f, **kw)
a, b, c = load(), load(map_location="cpu"), load(map_location=lambda s, place: s)
out = [a["x"].device.type == device, b["x"].device.type, a, b, c["x"].device.type,
    load(map_location=torch.device(device))["m"]["0.weight"].device,
    load(map_location={"cuda:0": "cpu"})["x"].device.type, load(map_location="meta")["x"].device]

# a whole model saved, and shared storage kept
m = mlp(); x = normal(4); torch.save([m, x, x[1:3]], f := io.BytesIO()); f.seek(0)
n, y, z = torch.load(f, weights_only=False); y[1] = 100
out = [n(normal(2, 4)), m(normal(2, 4)), z[0].item(), y.device.type == device]

# a file mapped into memory
with tempfile.TemporaryDirectory() as d:
    torch.save(normal(3), p := os.path.join(d, "x.pt")); x = torch.load(p, mmap=True, map_location="cpu").clone()
    y = torch.load(p).to(device)
    with torch.serialization.skip_data(): torch.save(normal(3), os.path.join(d, "y.pt"))
out = [x, y]

# deep copies and pickles of modules
m = mlp(); m(normal(1, 4)).sum().backward(); n, k = copy.deepcopy(m), pickle.loads(pickle.dumps(m))
with torch.no_grad(): n[0].weight.zero_()
out = [m(normal(2, 4)), n(normal(2, 4)), k(normal(2, 4)), n[0].weight.grad, next(k.parameters()).device.type == device,
    raised(RuntimeError, copy.deepcopy, m(normal(1, 4)))[:40]]
""",
    "compilers": """
# compiled eagerly
f = torch.compile(lambda x: (x.sin() + x.cos()).sum(-1), backend="eager", fullgraph=True)
out = [f(normal(3, 4)), f(normal(5, 4))]

# compiled by aot_eager, with backward
m = mlp(); c = torch.compile(m, backend="aot_eager"); x = normal(5, 4).requires_grad_(); y = c(x)
y.pow(2).sum().backward()
out = [y, x.grad, [p.grad for p in m.parameters()]]

# a backend of one's own sees the device
seen = []
def backend(g, inputs):
    seen.extend([len(list(g.graph.nodes)), *[i.device.type == device for i in inputs if isinstance(i, torch.Tensor)]])
    return g.forward
out = [torch.compile(lambda x: x.relu() * 2, backend=backend)(normal(3)), seen]

# graph breaks and branches
@torch.compile(backend="eager")
def f(x):
    if x.sum().item() > 0: return x + 1
    torch._dynamo.graph_break(); return x - torch.ones(3, device=x.device)
out = [f(normal(3)), f(-normal(3))]

# graph breaks explained
out = torch._dynamo.explain(lambda x: x.cpu().sum() + 1)(normal(3)).graph_count

# what a compiler refuses
broken = torch.compile(lambda x: (torch._dynamo.graph_break(), x + 1)[1], backend="eager", fullgraph=True)
out = [type(raised(Exception, broken, normal(3))).__name__]
out += [type(raised(Exception, lambda: torch.compile(torch.sin, backend="none such")(normal(3)))).__name__]

# code that knows that it is compiled
out = torch.compile(lambda x: x + (1 if torch.compiler.is_compiling() else 5), backend="eager")(normal(3))

# dynamic shapes
f = torch.compile(lambda x: x.view(-1, 2).sum(0) * x.shape[0], backend="aot_eager", dynamic=True)
out = [f(normal(4)), f(normal(6)), f(normal(8))]

# a compiled optimiser step
x = normal(3).requires_grad_(); o = torch.optim.SGD([x], 0.1, foreach=True)
step = torch.compile(o.step, backend="eager")
for _ in range(2): x.grad = torch.ones(3, device=device); step()
out = x

# compiled autocast, dropout and no_grad
@torch.compile(backend="eager")
def f(x):
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16): return x @ x
out = [f(normal(3, 3)).dtype, f(normal(3, 3)).shape]

# export of a model
m = mlp().eval(); ep = torch.export.export(m, (normal(5, 4),)); torch.export.save(ep, f := io.BytesIO()); f.seek(0)
out = [ep.module()(normal(5, 4)), torch.export.load(f).module()(normal(5, 4)), list(ep.state_dict),
    [n.op for n in ep.graph.nodes]]

# export with a dynamic batch, decomposed
class Net(nn.Module):
    def forward(self, x, y): return F.layer_norm(x @ y, (3,)).softmax(-1) + torch.ones(3, device=x.device)
ep = torch.export.export(Net(), (normal(5, 4), normal(4, 3)),
    dynamic_shapes={"x": {0: torch.export.Dim("b")}, "y": None})
out = [ep.module()(normal(7, 4), normal(4, 3)), ep.run_decompositions().module()(normal(2, 4), normal(4, 3))]

# export keeps the devices of its constants
class Net(nn.Module):
    def forward(self, x): return (x + torch.arange(3, device=x.device)).to("cpu")
g = torch.export.export(Net(), (normal(3),)).graph
out = [[str(n.kwargs.get("device")) for n in g.nodes if "arange" in str(n.target)],
    [n.meta["val"].device.type for n in g.nodes if isinstance(n.meta.get("val"), torch.Tensor)][-1]]

# traced and saved
m = torch.jit.trace(mlp().eval(), normal(5, 4)); torch.jit.save(m, f := io.BytesIO())
f.seek(0); n = torch.jit.load(f, map_location=device); f.seek(0); k = torch.jit.load(f, map_location="cpu")
out = [m(normal(3, 4)), n(normal(3, 4)), k(normal(3, 4).cpu()), next(n.parameters()).device,
    next(k.parameters()).device.type]

# traced with a constant of its device
f = torch.jit.trace(lambda x: x + torch.ones(3, device=x.device), normal(3))
out = [f(normal(3)), "cpu" if str(normal(1).device) in f.code else f.code]

# traced, saved and loaded where it was
torch.jit.save(torch.jit.trace(mlp().eval(), normal(5, 4)), f := io.BytesIO()); f.seek(0); m = torch.jit.load(f)
out = [next(m.parameters()).device, m(normal(3, 4))]

# scripted with control flow
def f(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = x * 2 if bool(x.sum() > 0) else x + 1
    return x
s = torch.jit.script(f)
out = [s(normal(3), 3), s(-normal(3), 4), "prim::Loop" in str(s.graph)]

# scripted module, frozen and optimised within 1e-6
s = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).to(device).eval())
z = torch.jit.freeze(s); o = torch.jit.freeze(torch.jit.script(mlp().eval()))
out = [s(normal(1, 3, 5, 5)), z(normal(1, 3, 5, 5)), z(normal(1, 3, 5, 5)), o(normal(2, 4)).shape]

# script makes tensors on a device
def f(x: torch.Tensor):
    return torch.zeros(2, device=x.device) + 1, torch.arange(3, device=x.device), x.device.type, x.is_cuda
s = torch.jit.script(f)
out = [*s(normal(2))[:2], s(normal(2))[2], s(normal(2))[3] == (device == "cuda")]

# decompositions and symbolic shapes in make_fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
g = make_fx(lambda x: F.gelu(x).var(0), get_decompositions([torch.ops.aten.gelu]),
    tracing_mode="symbolic")(normal(4, 3))
out = [g(normal(6, 3)), [str(n.target) for n in g.graph.nodes][:3]]

# a graph of ahead-of-time autograd
from functorch.compile import aot_function, make_boxed_func
seen = []; comp = lambda g, i: (seen.append(len(list(g.graph.nodes))), make_boxed_func(g.forward))[1]
x = normal(3).requires_grad_(); aot_function(lambda x: x.sin().exp(), comp, comp)(x).sum().backward()
out = [x.grad, seen]
""",
    "extending": """
# a custom operator with fake and gradient
@torch.library.custom_op("outside_a::scale", mutates_args=())
def scale(x: torch.Tensor, k: float) -> torch.Tensor: return x * k
scale.register_fake(lambda x, k: torch.empty_like(x))
scale.register_autograd(lambda c, g: (g * c.k, None), setup_context=lambda ctx, inputs,
    output: setattr(ctx, "k", inputs[1]))
x = normal(3).requires_grad_(); torch.ops.outside_a.scale(x, 3.0).sum().backward()
out = [scale(x, 2.0), x.grad, torch.compile(lambda x: scale(x, 2.0) + 1, backend="aot_eager",
    fullgraph=True)(normal(3))]

# a custom operator with a kernel for each device
@torch.library.custom_op("outside_b::who", mutates_args=(), device_types="cpu")
def who(x: torch.Tensor) -> torch.Tensor: seen.append("cpu"); return x + 1
who.register_kernel("cuda")(lambda x: (seen.append("cuda"), x + 1)[1])
seen = []; out = [who(normal(3)), seen]

# a custom operator that changes its argument
@torch.library.custom_op("outside_c::fill", mutates_args={"x"})
def fill(x: torch.Tensor, v: float) -> None: x.fill_(v)
x = normal(3); fill(x, 4.0)
f = torch.compile(lambda x: (torch.ops.outside_c.fill(x, 5.0), x * 2)[1], backend="aot_eager")
out = [x, f(x), x]

# a library's definitions
L = torch.library.Library("outside_d", "FRAGMENT"); L.define("add3(Tensor x) -> Tensor")
L.impl("add3", lambda x: x + 3, "CPU"); L.impl("add3", lambda x: x + 3, "CUDA")
L.impl("add3", torch.empty_like, "Meta")
out = [torch.ops.outside_d.add3(normal(3)), torch.ops.outside_d.add3.default(normal(2)),
    torch.ops.outside_d.add3(torch.empty(2, device="meta")).shape]
L._destroy()

# opcheck of a custom operator
@torch.library.custom_op("outside_e::neg", mutates_args=())
def neg(x: torch.Tensor) -> torch.Tensor: return -x
neg.register_fake(torch.empty_like); neg.register_vmap(lambda info, dims, x: (neg(x), dims[0]))
out = [torch.library.opcheck(neg, (normal(3),), test_utils=("test_schema", "test_faketensor")),
    torch.vmap(neg)(normal(3, 2))]

# operators by their names
out = [torch.ops.aten.add.Tensor(normal(3), 1, alpha=2), torch.ops.aten.native_layer_norm(normal(2, 3), [3], None, None,
    1e-5)[0], torch.ops.aten._softmax(normal(2, 3), 1, False), torch.ops.aten.sum.dim_IntList(normal(2, 3), [1])]

# trees
from torch.utils import _pytree as pytree
tree = {"a": [normal(2), (normal(3), 4)]}; leaves, spec = pytree.tree_flatten(tree)
out = [pytree.tree_unflatten([x * 2 for x in leaves], spec), pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(),
    tree)]

# weak references and deletion
import weakref
x = normal(3); r = weakref.ref(x); del x; gc.collect()
out = [r() is None, len(weakref.WeakKeyDictionary({(y := normal(2)): 1})), y]

# DLPack there and back
x = normal(3); y = torch.from_dlpack(x); z = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)); y[0] = 5
out = [x, z, y.data_ptr() == x.data_ptr(), y.device.type == device, x.__dlpack_device__()[1]]

# attributes of tensors kept by python
x = normal(3); x.note = "kept"; p = nn.Parameter(x); p.tag = 1
out = [x.note, p.tag, isinstance(p, nn.Parameter), [t for t in [x]][0].note, nn.Buffer(x).shape,
    p.data_ptr() == x.data_ptr()]
""",
    "layouts": """
# sparse COO
i, v = torch.tensor([[0, 1, 1], [2, 0, 0]], device=device), torch.tensor([3.0, 4.0, 5.0], device=device)
s = torch.sparse_coo_tensor(i, v, (2, 3))
c = s.coalesce()
out = [s.to_dense(), c.indices(), c.values(), s._nnz(), c._nnz(), (s + s).to_dense(), (c * 2).to_dense(),
    s.t().to_dense(), s @ normal(3, 2), torch.sparse.sum(s), torch.sparse.sum(s, 0).to_dense(), s.is_sparse, s.device]

# sparse gradients
d = normal(4, 3); s = (d * (d > 0)).to_sparse().requires_grad_(); w = normal(3, 2).requires_grad_()
torch.sparse.mm(s, w).sum().backward()
out = [w.grad, s.grad.to_dense(), torch.sparse.softmax(s.detach(), 1).to_dense(),
    torch.sparse.log_softmax(s.detach(), 0).to_dense()]

# sparse CSR and CSC
d = normal(4, 3) * (normal(4, 3) > 0); s, c = d.to_sparse_csr(), d.to_sparse_csc()
out = [s.crow_indices(), s.col_indices(), s.values(), c.ccol_indices(), c.to_dense(), s @ normal(3, 2), s.layout,
    s.to_sparse_coo().to_dense(), torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], device=device).to_dense()]

# sparse blocks
d = torch.block_diag(normal(2, 2), normal(2, 2)); s = d.to_sparse_bsr((2, 2))
out = [s.values(), s.to_dense(), s.layout, d.to_sparse_bsc((2, 2)).to_dense(), s._nnz()]

# sparse pieces
s = (normal(4, 3) * (normal(4, 3) > 0)).to_sparse(); i = torch.tensor([0, 2], device=device)
h = torch.sparse_coo_tensor(i[None], normal(2, 3), (4, 3))
out = [s[1].to_dense(), s.index_select(0, i).to_dense(), torch.cat([s, s]).to_dense(), h.to_dense(), h.dense_dim()]
out += [normal(4, 3).sparse_mask(s).to_dense(), s.cpu().to(device).to_dense(), s.sqrt().to_dense().nan_to_num()]

# sparse tensors from lists
a = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], device=device)
out = [a.device, a.to_dense(), torch.sparse_coo_tensor([[0, 2]], normal(2), (3,), device=device).to_dense()]

# nested tensors, strided
n = torch.nested.nested_tensor([normal(2, 3), normal(4, 3)], device=device)
out = [torch.nested.to_padded_tensor(n, 0.0), [t for t in (n * 2).unbind()], n.size(2), n.is_nested,
    F.relu(n).unbind()[0], nn.Linear(3, 2).to(device)(n).unbind()[1]]

# nested tensors, jagged within 1e-5
a = normal(2, 3).requires_grad_(); n = torch.nested.as_nested_tensor([a, normal(4, 3)], layout=torch.jagged)
y = nn.Linear(3, 2).to(device)(n).relu(); y.values().sum().backward()
out = [y.values(), y.offsets(), a.grad, n.sum(1), n.shape[0], n.to_padded_tensor(0.0), n.layout,
    (n * 2 + 1).unbind()[1], n.device]

# jagged tensors from offsets, in attention within 1e-5
n = torch.nested.nested_tensor_from_jagged(normal(6, 8), torch.tensor([0, 2, 6], device=device))
q = n.unflatten(-1, (2, 4)).transpose(1, 2)
out = [n.unbind()[0], q.shape[1], torch.nested.narrow(normal(2, 5, 3), 1, 0, torch.tensor([2, 4], device=device),
    layout=torch.jagged).unbind()[1], F.layer_norm(n, (8,)).values()]

# masked tensors
from torch.masked import as_masked_tensor
m = as_masked_tensor(normal(2, 3), normal(2, 3) > 0)
out = [m.sum().get_data(), torch.masked.mean(normal(2, 3), 1, mask=normal(2, 3) > 0), (m * 2).get_mask(),
    m.to_tensor(0.0)]

# quantised tensors
x = normal(3, 4); q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
c = torch.quantize_per_channel(x, torch.full((3,), 0.1, device=device), torch.zeros(3, device=device).int(), 0,
    torch.qint8)
out = [q.int_repr(), q.dequantize(), q.q_scale(), q.q_zero_point(), c.dequantize(), q.is_quantized,
    c.q_per_channel_scales(), q.device]

# fake quantisation and its observers
from torch.ao import quantization as Q
f = Q.FakeQuantize(Q.MovingAverageMinMaxObserver, quant_min=0, quant_max=255).to(device)
x = normal(3, 4).requires_grad_(); y = f(x); y.sum().backward(); o = Q.MinMaxObserver().to(device); o(x)
out = [y, x.grad, f.scale, f.zero_point, *o.calculate_qparams(),
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), torch.fake_quantize_per_channel_affine(x,
    torch.full((3,), 0.1, device=device), torch.zeros(3, device=device).int(), 0, -128, 127)]

# quantisation-aware training within 1e-5
from torch.ao import quantization as Q
m = nn.Sequential(Q.QuantStub(), nn.Linear(4, 3), nn.ReLU(), Q.DeQuantStub()).train()
m.qconfig = Q.QConfig(Q.FakeQuantize.with_args(observer=Q.MinMaxObserver, quant_min=0, quant_max=255),
    Q.default_weight_fake_quant)
m = Q.prepare_qat(m).to(device)
y = m(normal(5, 4)); y.sum().backward()
out = [y, m[1].weight.grad, m.state_dict()]

# weights packed in small numbers
w = normal(4, 8); s = w.abs().amax(1, keepdim=True) / 7; q = (w / s).round().to(torch.int8) + 8
p = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
u = torch.stack([p >> 4, p & 15], -1).flatten(1).to(torch.int8) - 8
out = [p, u * s, torch.equal(u, q - 8), p.view(torch.int8), (w.to(torch.float8_e5m2)).view(torch.uint8)]
""",
    "data": """
# a loader with workers, moved to the device
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
out = [[x.to(device) * 2, y.to(device, non_blocking=True)] for x,
    y in DataLoader(data, 4, num_workers=2, persistent_workers=True)]

# a loader that does not keep the order
from torch.utils.data import DataLoader
loader = DataLoader(range(12), batch_size=2, num_workers=2, in_order=False, prefetch_factor=1)
out = sorted(b.to(device).tolist() for b in loader)

# pinned batches of dictionaries
from torch.utils.data import DataLoader
data = [{"x": torch.full((2,), float(i)), "name": str(i), "n": i} for i in range(6)]
out = [{"x": b["x"].to(device, non_blocking=True), "name": b["name"], "n": b["n"]} for b in DataLoader(data, 3,
    pin_memory=True)]

# custom collate and pin_memory methods
from torch.utils.data import DataLoader
class Batch:
    def __init__(self, rows): self.x = nn.utils.rnn.pad_sequence(rows, batch_first=True); self.pinned = 0
    def pin_memory(self): self.x = self.x.pin_memory(); self.pinned = 1; return self
out = [[b.x.to(device), b.pinned >= 0] for b in DataLoader([torch.ones(i) for i in range(1, 6)], 2, collate_fn=Batch,
    pin_memory=True)]

# batch samplers and weights
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
batches = DataLoader(range(7), batch_sampler=BatchSampler(SequentialSampler(range(7)), 3, True))
w = DataLoader(range(3), sampler=WeightedRandomSampler([0.0, 1.0, 0.0], 4))
out = [[b.to(device) for b in batches], [b.to(device) for b in w], sorted(SubsetRandomSampler([4, 2])),
    [[3, 1], [0]] == [b.tolist() for b in DataLoader(range(4), batch_sampler=[[3, 1], [0]])]]

# iterable data shared among workers
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Rows(IterableDataset):
    def __iter__(self): i = get_worker_info(); return iter(range(i.id, 8, i.num_workers))
out = sorted(int(v) for b in DataLoader(Rows(), 2, num_workers=2) for v in b.to(device))

# shuffled in the same order by a generator
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
g = torch.Generator().manual_seed(3); a, b = random_split(range(10), [0.7, 0.3], generator=g)
out = [[x.to(device) for x in DataLoader(ConcatDataset([a, b]), 4, shuffle=True, generator=g, drop_last=True)],
    list(Subset(range(9), [1, 5]))]

# a worker's error arrives
from torch.utils.data import DataLoader
class Bad(torch.utils.data.Dataset):
    __len__ = lambda self: 4
    def __getitem__(self, i): raise KeyError("broken row")
loader = iter(DataLoader(Bad(), num_workers=1)); error = raised(KeyError, next, loader); loader._shutdown_workers()
out = ["broken row" in error, "worker process 0" in error]

# data that lies on the device
from torch.utils.data import DataLoader, TensorDataset, default_collate
data = TensorDataset(normal(6, 2))
out = [x for (x,) in DataLoader(data, 4)] + [default_collate([(normal(2), 1), (normal(2), 2)])]
""",
    "parallel": """
# all collectives in a world of one
with world():
    x = normal(3); dist.all_reduce(x); y = [torch.empty_like(x)]; dist.all_gather(y, x); dist.broadcast(x, 0)
    z = torch.empty(3, device=device); dist.all_gather_into_tensor(z, x)
    objects = [None]; dist.all_gather_object(objects, {"a": 1}); work = dist.all_reduce(x, async_op=True); work.wait()
    dist.barrier(); w = [{"k": 2}]; dist.broadcast_object_list(w, 0)
    out = [x, y, z, objects, w, dist.get_world_size(), dist.get_rank(), work.is_completed(),
        dist.get_world_size(dist.new_group([0])), dist.is_initialized()]
out += [dist.is_initialized()]

# DDP within 1e-6
from torch.nn.parallel import DistributedDataParallel as DDP
with world():
    m = mlp(); d = DDP(m, static_graph=True, gradient_as_bucket_view=True); o = torch.optim.SGD(d.parameters(), 0.1)
    seen = []
    for _ in range(3):
        o.zero_grad(); y = d(normal(5, 4)); y.sum().backward(); seen.append([p.grad.clone() for p in m.parameters()])
        o.step()
    out = [seen, y, list(d.state_dict()), d.module is m, m[0].weight.grad._is_view()]

# DDP's communication hook
from torch.nn.parallel import DistributedDataParallel as DDP
def hook(state, bucket):
    state.append([bucket.index(), bucket.is_last(), bucket.buffer().numel(), bucket.buffer().device.type == device])
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] * 3)
with world():
    m = mlp(); d = DDP(m); state = []; d.register_comm_hook(state, hook); d(normal(5, 4)).sum().backward()
    out = [state, [p.grad for p in m.parameters()]]

# DDP's compressed gradients
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
with world():
    d = nn.parallel.DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    d.register_comm_hook(None, default_hooks.fp16_compress_hook); d(normal(5, 4)).sum().backward()
    out = [p.grad for p in d.parameters()]

# DDP without synchronisation, and with unused parameters
with world():
    m = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)]).to(device); m.forward = lambda x: m[0](x)
    d = nn.parallel.DistributedDataParallel(m, find_unused_parameters=True, broadcast_buffers=False)
    with d.no_sync(): d(normal(5, 4)).sum().backward()
    d(normal(5, 4)).sum().backward(); out = [p.grad for p in m.parameters()]

# ZeroRedundancyOptimizer within 1e-6
from torch.distributed.optim import ZeroRedundancyOptimizer
with world():
    d = nn.parallel.DistributedDataParallel(mlp())
    o = ZeroRedundancyOptimizer(d.parameters(), torch.optim.AdamW, lr=0.01)
    for _ in range(2): o.zero_grad(); d(normal(5, 4)).pow(2).sum().backward(); o.step()
    o.consolidate_state_dict(0); out = [list(d.parameters()), sorted(o.state_dict()), len(o.state_dict()["state"])]

# DTensor within 1e-5
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, zeros
with world():
    mesh = init_device_mesh(device, (1,), mesh_dim_names=("dp",)); x = distribute_tensor(normal(4, 3), mesh, [Shard(0)])
    w = distribute_tensor(normal(3, 2).requires_grad_(), mesh, [Replicate()])
    y = x @ w; y.sum().backward()
    out = [y.full_tensor(), w.grad.to_local() if isinstance(w.grad, DTensor) else 0, str(y.placements),
        y.redistribute(mesh, [Replicate()]).to_local(), zeros(2, device_mesh=mesh).to_local(), y.device.type == device,
        mesh.size(), mesh["dp"].device_type]

# tensor parallelism within 1e-5
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
with world():
    m = mlp(); parallelize_module(m, init_device_mesh(device, (1,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    y = m(normal(5, 4)); y.sum().backward()
    out = [y, m[0].weight.grad.full_tensor(), type(m[0].weight.data).__name__]

# FSDP2 within 1e-5
from torch.distributed.fsdp import fully_shard
with world():
    mesh = dist.init_device_mesh(device, (1,)); m = mlp()
    for part in (m[0], m[2], m): fully_shard(part, mesh=mesh)
    o = torch.optim.AdamW(m.parameters(), 0.01)
    for _ in range(2): o.zero_grad(); y = m(normal(5, 4)); y.pow(2).sum().backward(); o.step()
    out = [y, [p.full_tensor() for p in m.parameters()], {k: v.full_tensor() for k, v in m.state_dict().items()},
        type(m).__name__]

# FSDP2 in mixed precision within 1e-2
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
with world():
    m = fully_shard(mlp(), mesh=dist.init_device_mesh(device, (1,)),
        mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32))
    y = m(normal(5, 4)); y.sum().backward()
    out = [y, m[0].weight.dtype, m[0].weight.grad.full_tensor()]

# distributed samplers and checkpoints
import torch.distributed.checkpoint as dcp
from torch.utils.data import DistributedSampler
with world(), tempfile.TemporaryDirectory() as d:
    s = {"x": normal(3), "n": 4}; dcp.save(s, checkpoint_id=d); t = {"x": torch.zeros(3, device=device), "n": 0}
    dcp.load(t, checkpoint_id=d)
    out = [t, sorted(DistributedSampler(range(5))), os.path.exists(os.path.join(d, ".metadata"))]

# model state dicts of distributed checkpoints
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict
with world():
    m = mlp(); o = torch.optim.AdamW(m.parameters()); m(normal(2, 4)).sum().backward(); o.step()
    a, b = get_state_dict(m, o); set_model_state_dict(m, {k: v * 0 + 1 for k, v in a.items()})
    out = [sorted(b["state"]), list(a), m(normal(2, 4))]

# synchronised batch norm
with world():
    m = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))).to(device).eval()
    out = [m(normal(5, 4)), type(m[1]).__name__]

# functional collectives and scattered sums
import torch.distributed._functional_collectives as funcol
with world():
    out = [funcol.all_reduce(normal(3), "sum", dist.group.WORLD) + 0]
    x = torch.empty(2, device=device); dist.reduce_scatter(x, [normal(2)]); out += [x]
""",
    "tools": """
# the profiler names the operators
from torch.profiler import profile, record_function, schedule
keep = lambda p: ready.append(sorted({e.key for e in p.key_averages() if e.key in ("aten::mm", "mine")}))
ready = []
with profile(schedule=schedule(wait=1, warmup=1, active=1), on_trace_ready=keep) as p:
    for _ in range(3):
        with record_function("mine"): normal(3, 3) @ normal(3, 3)
        p.step()
out = ready

# a profile with memory and stacks
from torch.profiler import profile
with profile(profile_memory=True, with_stack=True) as p: (normal(3, 4) @ normal(4, 5)).sum()
out = "aten::mm" in p.key_averages().table(row_limit=-1)

# a profile with shapes
from torch.profiler import profile
with profile(record_shapes=True) as p: (normal(3, 4) @ normal(4, 5)).sum()
out = [e.input_shapes for e in p.key_averages(group_by_input_shape=True) if e.key == "aten::mm"]

# a trace written for Chrome
import json
from torch.profiler import profile
with profile() as p: normal(3, 4).relu()
with tempfile.TemporaryDirectory() as d:
    p.export_chrome_trace(f := os.path.join(d, "t.json")); events = json.load(open(f))["traceEvents"]
out = any(e.get("name") == "aten::relu" for e in events)

# the older profiler
with torch.autograd.profiler.profile(enabled=True) as p: y = normal(3).exp()
out = [y, any(e.name == "aten::exp" for e in p.function_events), "Self CPU" in str(p.key_averages().table())]

# benchmarks
from torch.utils import benchmark
x = normal(4); t = benchmark.Timer("x + 1", globals={"x": x}); m = t.timeit(5)
out = [m.number_per_run, m.mean >= 0, type(t.blocked_autorange(min_run_time=0.001)).__name__]

# deterministic algorithms
torch.use_deterministic_algorithms(True, warn_only=True)
y = torch.zeros(3, device=device).index_add_(0, torch.tensor([0, 0, 2], device=device), normal(3))
e = torch.empty(2, device=device)
out = [y, torch.are_deterministic_algorithms_enabled(), e]
torch.use_deterministic_algorithms(False)

# writing over operators with torch.testing
from torch.testing import make_tensor
out = [make_tensor((2,), device=device, dtype=torch.float32).shape,
    raised(AssertionError, torch.testing.assert_close, normal(3), normal(3) + 1).split("Greatest")[0]]

# threads and grad modes are as they were
import threading
seen = []
t = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
with torch.no_grad(): t.start(); t.join()
out = [seen, torch.is_grad_enabled(), torch.get_num_threads() > 0, normal(2)]

# autocast in bfloat16: values stay near within 5e-2
m = mlp(); x = normal(5, 4)
with torch.autocast(device, torch.bfloat16): y = m(x)
y.float().sum().backward()
out = [y, m[0].weight.grad, torch.is_autocast_enabled(device),
    torch.get_autocast_dtype(device) in (torch.float16, torch.bfloat16)]

# gradient scaler
s = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1); x = normal(3).requires_grad_()
o = torch.optim.SGD([x], 0.1)
s.scale(x.sum()).backward(); g = x.grad.clone(); s.unscale_(o); u = x.grad.clone(); s.step(o); s.update()
a = s.get_scale()
o.zero_grad(); s.scale((x * float("inf")).sum()).backward(); before = x.clone(); s.step(o); s.update()
out = [g, u, a, s.get_scale(), torch.equal(x, before), s.state_dict(), s.is_enabled()]

# streams in general
s = torch.Stream(device=device); e = torch.Event(device=device) if device == "cuda" else None
with contextlib.nullcontext() if device == "cpu" else s: x = normal(3) * 2
if e: e.record(s); e.synchronize(); s.synchronize()
out = [x, s.device]
""",
}

CUDA_ONLY = {
    "facts": """
# versions and names
assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.backends.cuda.is_built()
assert torch.version.hip is None
assert isinstance(torch.version.cuda, str) and isinstance(torch.backends.cudnn.version(), int)
assert torch.backends.cudnn.is_available()
assert "A100" in torch.cuda.get_device_name() and torch.cuda.get_device_capability() == (8, 0)
assert "sm_80" in torch.cuda.get_arch_list()
assert isinstance(torch.cuda.nccl.version(), tuple) and dist.is_nccl_available() and torch.cuda.is_bf16_supported()

# the device's properties
p = torch.cuda.get_device_properties(device)
assert (p.major, p.minor, p.multi_processor_count, p.warp_size) == (8, 0, 108, 32)
assert p.max_threads_per_multi_processor == 2048
assert p.total_memory > 39 * 2**30 and p.regs_per_multiprocessor == 65536 and p.L2_cache_size == 40 * 2**20
assert "A100" in p.name
assert p.shared_memory_per_block == 49152 and p.shared_memory_per_block_optin == 166912
assert "multi_processor_count=108" in repr(p)

# current devices
assert torch.cuda.current_device() == 0 and torch.device("cuda").index is None
assert torch.ones(1, device="cuda").device == torch.device("cuda:0")
torch.cuda.set_device(0); torch.cuda.init()
with torch.cuda.device(0), torch.cuda.device_of(normal(1)):
    x = torch.ones(1).cuda(); y = torch.ones(1, device=0); z = torch.ones(1).to(0)
assert x.get_device() == y.get_device() == z.get_device() == 0 and torch.ones(1).get_device() == -1 and x.is_cuda
assert torch.cuda.is_initialized()

# the accelerator's interface
a = torch.accelerator
assert a.is_available() and a.current_accelerator().type == "cuda" and a.device_count() == 1
assert a.current_device_index() == 0
a.synchronize()
assert torch.get_device_module("cuda") is torch.cuda and a.current_stream() == torch.cuda.current_stream()
assert a.memory_allocated() == torch.cuda.memory_allocated() and a.max_memory_allocated() >= 0

# backends' defaults
b = torch.backends
assert b.cudnn.enabled and not b.cudnn.benchmark and not b.cudnn.deterministic and b.cudnn.allow_tf32
assert not b.cuda.matmul.allow_tf32
assert b.cuda.flash_sdp_enabled() and b.cuda.mem_efficient_sdp_enabled() and b.cuda.math_sdp_enabled()
assert b.cudnn.is_acceptable(normal(1))
assert torch.get_float32_matmul_precision() == "highest" and b.cuda.cufft_plan_cache.max_size >= 0
with b.cudnn.flags(enabled=False, benchmark=True): assert not b.cudnn.enabled and b.cudnn.benchmark
assert b.cudnn.enabled and not b.cudnn.benchmark

# the driver's numbers
assert torch.cuda.cudart().cudaProfilerStart() == torch.cuda.cudart().cudaError.success
torch.cuda.cudart().cudaProfilerStop(); torch.cuda.profiler.start(); torch.cuda.profiler.stop()
assert isinstance(torch.cuda.utilization(), int) and 0 <= torch.cuda.utilization() <= 100
free, total = torch.cuda.mem_get_info(); assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory

# operators tuned at run time
assert torch.cuda.tunable.is_enabled() is False

# flash attention has no kernel for float32
from torch.nn.attention import SDPBackend, sdpa_kernel
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    assert "No available kernel" in raised(RuntimeError, F.scaled_dot_product_attention,
        *[torch.ones(1, 1, 8, 8, device=device)] * 3)

# cuBLAS, IPC and sleeping
assert isinstance(torch.cuda.current_blas_handle(), int); torch.cuda.ipc_collect(); torch.cuda._sleep(1000)
assert torch.cuda.get_allocator_backend() == "native" and torch.cuda.can_device_access_peer(0, 0) in (True, False)
""",
    "tensors": """
# how tensors are printed
x = torch.ones(2, device=device)
assert repr(x) == "tensor([1., 1.], device='cuda:0')" and f"{x[0]}" == "1.0"
assert repr(x[0]) == "tensor(1., device='cuda:0')"
assert repr(x.half()) == "tensor([1., 1.], device='cuda:0', dtype=torch.float16)"
assert repr(x[:0]) == "tensor([], device='cuda:0')"
assert repr(nn.Parameter(x)) == "Parameter containing:\\ntensor([1., 1.], device='cuda:0', requires_grad=True)"
assert repr((x.requires_grad_() * 2)) == "tensor([2., 2.], device='cuda:0', grad_fn=<MulBackward0>)"
assert repr(x.device) == "device(type='cuda', index=0)"

# how sparse tensors and generators are printed
s = torch.eye(2, device=device).to_sparse()
assert "device='cuda:0', size=(2, 2), nnz=2, layout=torch.sparse_coo)" in repr(s)
assert torch.Generator(device).device.type == "cuda"
assert "device='cuda:0'" in repr(torch.quantize_per_tensor(normal(2), 0.1, 0, torch.qint8))
assert "device='meta'" in repr(s.to_dense().to("meta"))

# legacy types
x = torch.ones(3, device=device)
assert x.type() == "torch.cuda.FloatTensor" and isinstance(x, torch.cuda.FloatTensor)
assert not isinstance(x, torch.FloatTensor)
assert x.type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"
assert x.type("torch.FloatTensor").device.type == "cpu"
assert torch.cuda.FloatTensor([1, 2]).is_cuda and torch.cuda.LongTensor(3).shape == (3,)
assert torch.ones(2).type(torch.cuda.LongTensor).is_cuda
assert torch.ones(2).type_as(x).is_cuda and x.to_sparse().type() == "torch.cuda.sparse.FloatTensor"
assert x.cpu().type() == "torch.FloatTensor"

# mixing devices
x, y = torch.ones(3, 3, device=device), torch.ones(3, 3)
for f in (torch.add, torch.mm, F.linear, lambda a, b: torch.cat([a, b]), lambda a, b: torch.where(a > 0, a, b),
    F.mse_loss, lambda a, b: a.add_(b), lambda a, b: F.conv1d(a[None], b[None])):
    assert "device" in raised(RuntimeError, f, x, y) or "type" in raised(RuntimeError, f, x, y), f
assert "same device" in raised(RuntimeError, lambda: y[torch.tensor([0], device=device)])
assert x[torch.tensor([0])].shape == (1, 3)
assert "Expected all tensors to be on the same device" in raised(RuntimeError, F.embedding, torch.tensor([0]), x)

# what numpy cannot take
x = torch.ones(3, device=device)
for f in (x.numpy, lambda: np.asarray(x), lambda: np.array([x, x])):
    assert "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()" in raised(TypeError, f)

# wrong generators and pins
assert "generator" in raised(RuntimeError, torch.randn, 3, device=device, generator=torch.Generator())
assert "only dense CPU tensors can be pinned" in raised(RuntimeError, torch.ones(3, device=device).pin_memory)

# products of half and float, without autocast
x = torch.ones(2, 2, device=device)
for f in (torch.mm, F.linear, lambda a, b: torch.bmm(a[None], b[None]), lambda a, b: F.conv1d(a[None], b[..., None])):
    assert raised(RuntimeError, f, x.half(), x)
assert raised(RuntimeError, nn.Linear(2, 2).cuda(), x.half())

# products of whole numbers
x = torch.ones(2, 2, device=device, dtype=torch.int64)
for f in (torch.mm, F.linear, lambda a, b: torch.bmm(a[None], b[None])):
    assert "not implemented for 'Long'" in raised(RuntimeError, f, x, x)

# what has no deterministic implementation
x, i = torch.ones(3, device=device), torch.tensor([0, 1, 1], device=device); torch.use_deterministic_algorithms(True)
try:
    [raised(RuntimeError, f) for f in (lambda: x.clone().put_(i, x), lambda: i.bincount(weights=x),
        lambda: x.median(0), lambda: x.histc(4))]
finally: torch.use_deterministic_algorithms(False)

# a forked worker cannot use the device
from torch.utils.data import DataLoader
class Rows(torch.utils.data.Dataset):
    __len__ = lambda self: 2
    def __getitem__(self, i): return torch.ones(2, device="cuda")
loader = iter(DataLoader(Rows(), num_workers=1)); error = raised(RuntimeError, next, loader); loader._shutdown_workers()
assert "Cannot re-initialize CUDA in forked subprocess" in error

# scalars of the CPU, and what else may come from there
x = normal(3, 4); x[0] = torch.ones(4); x[0, 0] = torch.tensor(2.0); x[x > 5] = torch.tensor(1.0)
assert all(y.is_cuda for y in (x + torch.tensor(1.0), torch.tensor(1.0) + x[0, 0],
    torch.where(x > 0, x, torch.tensor(0.0)), torch.pow(torch.tensor(2.0), x)))
assert "device" in raised(RuntimeError, lambda: torch.ones(3) + x[0, :3])
assert "device" in raised(RuntimeError, torch.stack, [x[0, 0], torch.tensor(1.0)])
assert "1D CPU int64 tensor" in raised(RuntimeError, nn.utils.rnn.pack_padded_sequence, x[..., None],
    torch.tensor([3] * 4, device=device))

# DLPack and the array interface
x = torch.ones(2, 3, device=device); a = x.__cuda_array_interface__
assert tuple(x.__dlpack_device__()) == (2, 0) and torch.ones(1).__dlpack_device__()[0] == 1
assert torch.from_dlpack(x).device == x.device
assert a["typestr"] == "<f4" and a["shape"] == (2, 3) and a["strides"] is None and a["data"] == (x.data_ptr(), False)
assert x.data_ptr() % 512 == 0
raised(AttributeError, lambda: torch.ones(1).__cuda_array_interface__)

# numpy does not take a GPU's DLPack
assert raised(Exception, np.from_dlpack, torch.ones(2, device=device))

# pinned memory
x = torch.ones(3).pin_memory(); y = torch.empty(2, pin_memory=True); z = x.to(device, non_blocking=True)
assert x.is_pinned() and y.is_pinned() and not z.is_pinned() and not x[:1].clone().is_pinned() and x[1:].is_pinned()
assert x.pin_memory() is x
assert z.sum() == 3 and torch.zeros_like(x, pin_memory=True).is_pinned() and not torch.ones(1).is_pinned()

# pinned batches
from torch.utils.data import DataLoader
class Batch:
    def __init__(self, rows): self.x, self.called = torch.stack(rows), False
    def pin_memory(self): self.x, self.called = self.x.pin_memory(), True; return self
assert all(b.called and b.x.is_pinned() for b in DataLoader(torch.ones(4, 2), 2, collate_fn=Batch, pin_memory=True))
assert all(b["x"].is_pinned() for b in DataLoader([{"x": torch.ones(2)}] * 4, 2, pin_memory=True, num_workers=1))

# the states of generators
s = torch.cuda.get_rng_state(); assert s.dtype == torch.uint8 and s.device.type == "cpu"
torch.cuda.manual_seed(5); a = torch.rand(3, device=device); assert torch.cuda.initial_seed() == 5
torch.cuda.set_rng_state(s); torch.cuda.manual_seed_all(5)
assert torch.equal(a, torch.rand(3, device=device)) and len(torch.cuda.get_rng_state_all()) == 1
with torch.random.fork_rng(): b = torch.rand(3, device=device)
assert torch.equal(b, torch.rand(3, device=device)) and torch.cuda.default_generators[0].device.type == "cuda"

# a generator's state is a seed and an offset
assert torch.cuda.get_rng_state().shape == torch.Generator(device).get_state().shape == (16,)
assert torch.Generator(device).get_offset() == 0

# the CPU's seed is another
torch.manual_seed(1); a = torch.rand(4); torch.manual_seed(1); torch.cuda.manual_seed(2)
assert torch.equal(a, torch.rand(4))

# the CPU's random numbers are others
torch.manual_seed(1); a = torch.rand(4); torch.manual_seed(1); torch.rand(4, device=device)
assert torch.equal(a, torch.rand(4)) and torch.equal(torch.cuda.get_rng_state(), torch.cuda.get_rng_state(0))

# loading without a map
torch.save(normal(3), f := io.BytesIO()); f.seek(0); assert str(torch.load(f).device) == "cuda:0"
f.seek(0); assert torch.load(f, map_location=lambda s, place: s).device.type == "cpu"
assert pickle.loads(pickle.dumps(nn.Linear(2, 2).cuda())).weight.device.type == "cuda"
assert copy.deepcopy(normal(1)).is_cuda

# modules on one device
m = nn.DataParallel(nn.Linear(4, 2).cuda(), device_ids=[0]); y = m(normal(3, 4)); assert y.is_cuda and y.shape == (3, 2)
from torch.cuda import comm
assert comm.broadcast(normal(2), [0])[0].is_cuda
assert next(nn.Linear(2, 2).to("cuda:0").cpu().parameters()).device.type == "cpu"
assert str(next(nn.LSTM(2, 2, device=device).parameters()).device) == "cuda:0"
nn.LSTM(2, 2, device=device).flatten_parameters()
""",
    "memory": """
# statistics
x = torch.ones(3, device=device); s = torch.cuda.memory_stats()
for key in ("allocated_bytes.all.current", "inactive_split_bytes.all.peak", "num_ooms", "num_alloc_retries",
    "segment.large_pool.freed", "active.small_pool.peak", "requested_bytes.all.allocated"):
    assert isinstance(s[key], int), key
assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
assert isinstance(torch.cuda.memory_summary(abbreviated=True), str)
assert torch.cuda.memory_stats_as_nested_dict()["allocation"]["all"]["current"] >= 1

# blocks of 512 bytes and segments of 2 MiB
gc.collect(); torch.cuda.empty_cache(); a, r = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
x = torch.ones(3, device=device)
assert torch.cuda.memory_allocated() - a == 512 and torch.cuda.memory_reserved() - r in (0, 2 * 2**20)
y = torch.ones(2**20, device=device); assert torch.cuda.memory_allocated() - a == 512 + 4 * 2**20
del x, y; assert torch.cuda.memory_allocated() == a; torch.cuda.empty_cache(); assert torch.cuda.memory_reserved() <= r

# peaks
torch.cuda.reset_peak_memory_stats(); a = torch.cuda.memory_allocated(); x = torch.ones(2**20, device=device); del x
assert torch.cuda.max_memory_allocated() - a == 4 * 2**20
assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats(); assert torch.cuda.max_memory_allocated() == a
torch.cuda.reset_accumulated_memory_stats()

# too much memory
e = raised(torch.OutOfMemoryError, torch.empty, 2**40, device=device)
assert "CUDA out of memory. Tried to allocate 4096.00 GiB" in e or "Tried to allocate 4.00 TiB" in e, e
assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError and issubclass(torch.OutOfMemoryError, RuntimeError)
assert torch.cuda.memory_stats()["num_ooms"] >= 1
torch.cuda.set_per_process_memory_fraction(0.01); raised(torch.OutOfMemoryError, torch.empty, 2**30, device=device)
torch.cuda.set_per_process_memory_fraction(1.0)
assert torch.ones(1, device=device).item() == 1

# histories and snapshots
assert torch.cuda.memory._record_memory_history(enabled=None) is None
torch.cuda.memory._record_memory_history(max_entries=100); x = torch.ones(3, device=device)
s = torch.cuda.memory._snapshot()
assert {"segments", "device_traces"} <= set(s) and isinstance(torch.cuda.memory_snapshot(), list)
assert s["segments"][0]["total_size"] > 0
with tempfile.TemporaryDirectory() as d:
    torch.cuda.memory._dump_snapshot(f := os.path.join(d, "s.pickle")); assert "segments" in pickle.load(open(f, "rb"))
torch.cuda.memory._record_memory_history(enabled=None)

# what is reserved, and pinned
assert isinstance(torch.cuda.memory_reserved(), int) and torch.cuda.host_memory_stats() is not None
""",
    "streams": """
# streams
s = torch.cuda.Stream()
assert torch.cuda.current_stream() == torch.cuda.default_stream() != s and torch.cuda.current_stream().cuda_stream == 0
x = torch.ones(3, device=device); s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s): assert torch.cuda.current_stream() == s; y = x * 2
x.record_stream(s); torch.cuda.current_stream().wait_stream(s); s.synchronize()
assert s.query() and y.tolist() == [2, 2, 2] and s.device.index == 0 and torch.cuda.Stream.priority_range()[0] == 0
assert torch.cuda.Stream(priority=-1).priority == -1

# events
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True); a.record()
x = normal(64, 64) @ normal(64, 64); b.record()
torch.cuda.synchronize()
assert a.query() and b.query() and isinstance(a.elapsed_time(b), float) and a.elapsed_time(b) > 0
raised(RuntimeError, torch.cuda.Event().elapsed_time, b)
s = torch.cuda.Stream(); e = s.record_event(); torch.cuda.current_stream().wait_event(e); e.wait(); e.synchronize()
assert e.query()

# the handle of an event
e = torch.cuda.Event(); e.record(); assert isinstance(e.cuda_event, int)

# generic streams and external ones
s = torch.Stream(device=device)
assert s.device.type == "cuda" and torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream).cuda_stream > 0
with torch.cuda.stream(None): pass
with s: assert torch.accelerator.current_stream() == s

# graphs
x = torch.ones(3, device=device); s = torch.cuda.Stream()
with torch.cuda.stream(s): y = x * 2
torch.cuda.current_stream().wait_stream(s); g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g): assert torch.cuda.is_current_stream_capturing(); y = x * 2 + 1
x.fill_(5); g.replay(); assert y.tolist() == [11, 11, 11] and not torch.cuda.is_current_stream_capturing()
x.copy_(torch.zeros(3)); g.replay(); assert y.sum() == 3; g.reset()

# a whole step in a graph
m = nn.Linear(4, 2).cuda(); o = torch.optim.Adam(m.parameters(), capturable=True); x = normal(5, 4)
s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
def step(): o.zero_grad(set_to_none=True); loss = m(x).pow(2).sum(); loss.backward(); o.step(); return loss
with torch.cuda.stream(s): [step() for _ in range(3)]
torch.cuda.current_stream().wait_stream(s); g = torch.cuda.CUDAGraph(); o.zero_grad(set_to_none=True)
with torch.cuda.graph(g): loss = step()
g.replay(); a = loss.item(); [g.replay() for _ in range(5)]
assert loss.item() < a and o.state[m.weight]["step"].item() == 9

# graphed callables
m = mlp(); n = copy.deepcopy(m); g = torch.cuda.make_graphed_callables(m, (torch.randn(5, 4, device=device),))
x = normal(5, 4)
y = g(x); y.sum().backward(); z = n(x); z.sum().backward()
torch.testing.assert_close(y, z); torch.testing.assert_close(m[0].weight.grad, n[0].weight.grad)

# what a capture forbids
x = torch.ones(3, device=device); g = torch.cuda.CUDAGraph()
def capture():
    with torch.cuda.graph(g): x.sum().item()
assert "captur" in raised(RuntimeError, capture).lower()

# NVTX
assert isinstance(torch.cuda.nvtx.range_push("a"), int) and isinstance(torch.cuda.nvtx.range_pop(), int)
torch.cuda.nvtx.mark("b")
with torch.cuda.nvtx.range("c {}", 3), torch.autograd.profiler.emit_nvtx(): normal(3) + 1
torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("d"))

# the profiler's kernels
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
    normal(64, 64) @ normal(64, 64); torch.cuda.synchronize()
table = p.key_averages().table(sort_by="cuda_time_total"); assert "CUDA" in table and "aten::mm" in table
assert sum(e.device_time_total for e in p.key_averages()) > 0
assert any(e.device_type == torch.autograd.DeviceType.CUDA for e in p.events())
""",
    "precision": """
# what autocast leaves alone
c, x = torch.ones(2, 2), torch.ones(2, 2, device=device)
with torch.autocast("cuda"):
    assert (c @ c).dtype == torch.float32 and (x.double() @ x.double()).dtype in (torch.float16, torch.float64)
    assert (x + x).dtype == torch.float32
    assert x.relu().dtype == torch.float32 and (x @ x).relu().dtype == torch.float16
    assert (x.int() + 1).dtype == torch.int32 and F.relu(x @ x).mean().dtype == torch.float16
    with torch.autocast("cuda", enabled=False): assert (x @ x).dtype == torch.float32
    with torch.autocast("cuda", torch.bfloat16): assert (x @ x).dtype == torch.bfloat16

# double stays double
x = torch.ones(2, 2, device=device, dtype=torch.float64)
with torch.autocast("cuda"):
    assert (x @ x).dtype == torch.float64 and x.exp().dtype == torch.float64 and x.softmax(0).dtype == torch.float64

# arguments named by hand
x = torch.ones(2, 2, device=device)
with torch.autocast("cuda"):
    assert x.half().sum(dtype=torch.float16).dtype == torch.float16
    assert x.softmax(0, dtype=torch.float64).dtype == torch.float64
    assert torch.mm(x.half(), x.half(), out=torch.empty(2, 2, device=device,
        dtype=torch.float16)).dtype == torch.float16
    assert x.addmm_(x, x).dtype == torch.float32

# the unsafe loss
x = torch.rand(3, device=device)
with torch.autocast("cuda"):
    assert "unsafe to autocast" in raised(RuntimeError, F.binary_cross_entropy, x, x)
    assert "unsafe to autocast" in raised(RuntimeError, nn.BCELoss(), x, x)
    assert F.binary_cross_entropy_with_logits(x.half(), x).dtype == torch.float32

# layers under autocast
x = normal(2, 3, 4, 4)
with torch.autocast("cuda"):
    y = nn.Conv2d(3, 4, 3).cuda()(x); z = nn.BatchNorm2d(4).cuda()(y); w = nn.LSTM(4, 3).cuda()(normal(2, 3, 4))[0]
    v = nn.MultiheadAttention(4, 2).cuda()(*[normal(2, 3, 4)] * 3)[0]
assert [t.dtype for t in (y, z, w, v)] == [torch.float16] * 4
with torch.autocast("cuda"):
    assert nn.LayerNorm(4).cuda()(y.mean(-1).transpose(1, 2)).dtype == torch.float32
    assert F.cross_entropy(y.mean((2, 3)), torch.tensor([0, 1], device=device)).dtype == torch.float32

# gradients and the cache
m = nn.Linear(4, 4, bias=False).cuda(); x = normal(2, 4)
with torch.autocast("cuda"):
    a = m(x); b = m(x)
    assert a.grad_fn.next_functions != () and a.dtype == torch.float16 and torch.is_autocast_cache_enabled()
(a.float().sum() + b.float().sum()).backward()
assert m.weight.grad.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
with torch.autocast("cuda", cache_enabled=False): m(x)

# custom_fwd and custom_bwd
class Mul(torch.autograd.Function):
    forward = staticmethod(torch.amp.custom_fwd(lambda c, x, w: (c.save_for_backward(x, w), seen.append((x.dtype,
        torch.is_autocast_enabled("cuda"))), x @ w)[2], device_type="cuda", cast_inputs=torch.float32))
    backward = staticmethod(torch.amp.custom_bwd(lambda c, g: (seen.append(torch.is_autocast_enabled("cuda")),
        g @ c.saved_tensors[1].T, c.saved_tensors[0].T @ g)[1:], device_type="cuda"))
seen = []; x = normal(2, 2).half().requires_grad_()
with torch.autocast("cuda"): y = Mul.apply(x, x)
y.sum().backward()
assert seen == [(torch.float32, False), False] and y.dtype == torch.float32 and x.grad.dtype == torch.float16

# autocast as decorator, and its older names
x = torch.ones(2, 2, device=device)
assert torch.autocast("cuda")(lambda: (x @ x).dtype)() == torch.float16
assert torch.get_autocast_dtype("cuda") == torch.float16 and torch.get_autocast_gpu_dtype() == torch.float16
with torch.cuda.amp.autocast(dtype=torch.bfloat16):
    assert (x @ x).dtype == torch.bfloat16 and torch.is_autocast_enabled()
    assert torch.get_autocast_dtype("cuda") == torch.bfloat16
with torch.autocast("cpu"): assert (x @ x).dtype == torch.float32 and (x.cpu() @ x.cpu()).dtype == torch.bfloat16

# checkpoints keep autocast
from torch.utils.checkpoint import checkpoint
x = normal(3, 3).requires_grad_(); seen = []
for kind in (True, False):
    with torch.autocast("cuda"): y = checkpoint(lambda v: (seen.append((v @ v).dtype), v @ v)[1], x, use_reentrant=kind)
    y.float().sum().backward()
assert seen == [torch.float16] * 4

# a scaler from its beginning
s = torch.amp.GradScaler(); m = mlp(); o = torch.optim.Adam(m.parameters(), fused=True); assert s.get_scale() == 65536.0
with torch.autocast("cuda"): loss = m(normal(5, 4)).pow(2).mean() / 1000
s.scale(loss).backward(); s.unscale_(o); nn.utils.clip_grad_norm_(m.parameters(), 1.0); s.step(o); s.update()
assert s.get_scale() == 65536.0
o.zero_grad(); s.scale(loss.detach() * m[0].weight.sum() * float("inf")).backward(); before = m[0].weight.clone()
s.step(o); s.update()
assert s.get_scale() == 32768.0 and torch.equal(before, m[0].weight)
assert "unscale_()" in raised(RuntimeError, lambda: (s.scale(m(normal(5, 4)).sum()).backward(), s.unscale_(o),
    s.unscale_(o)))

# float8 and TF32
assert normal(2, 2).to(torch.float8_e4m3fn).device.type == "cuda"; torch.set_float32_matmul_precision("high")
assert torch.backends.cuda.matmul.allow_tf32
torch.set_float32_matmul_precision("highest"); assert not torch.backends.cuda.matmul.allow_tf32

# promotion under autocast
h, x = torch.ones(2, 2, device=device).half(), torch.ones(2, 2, device=device)
with torch.autocast("cuda"):
    assert torch.cat([h, x]).dtype == torch.stack([h, x]).dtype == torch.float32
    assert torch.cat([h, h]).dtype == torch.float16 and (h + x).dtype == torch.float32
""",
    "worlds": """
# NCCL and its hooks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
with world("nccl"):
    assert dist.get_backend() == "nccl"; d = nn.parallel.DistributedDataParallel(mlp(), device_ids=[0], output_device=0)
    d.register_comm_hook(None, default_hooks.bf16_compress_hook)
    d(normal(5, 4)).sum().backward()
    assert all(p.grad.dtype == torch.float32 and torch.equal(p.grad, p.grad.bfloat16().float()) for p in d.parameters())
    dist.barrier(device_ids=[0]); assert "device" in raised(RuntimeError, dist.all_reduce, torch.ones(2)).lower()

# both backends in one
with world("cpu:gloo,cuda:nccl"):
    x, y = torch.ones(2), torch.ones(2, device=device); dist.all_reduce(x); dist.all_reduce(y)
    assert x.sum() == y.sum() == 2 and torch.cuda.is_available()

# a world without being told its device
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
with world("nccl"):
    m = fully_shard(nn.Linear(4, 4).cuda()); m(normal(2, 4)).sum().backward()
    assert isinstance(m, FSDPModule) and m.weight.device.type == "cuda" and m.weight.grad.full_tensor().is_cuda
    assert m.weight.device_mesh.device_type == "cuda"
""",
}

AUTOCAST = {  # the first part makes the arguments; each line of the second has the dtype that the kind begins with
    "float16 from float32": """
x, y = torch.rand(2, 4, 4, device=device), torch.rand(2, 4, 4, device=device); m, v = x[0], y[0, 0]

x @ y
torch.matmul(x, y)
torch.bmm(x, y)
torch.mm(m, m)
torch.mv(m, v)
torch.addmm(m, m, m)
torch.addmv(v, m, v)
torch.addr(m, v, v)
torch.addbmm(m, x, y)
torch.baddbmm(x, x, y)
torch.chain_matmul(m, m, m)
torch.linalg.multi_dot([m, m, m])
torch.einsum("ij,jk->ik", m, m)
torch.linalg.vecdot(x, y)
F.linear(x, m, v)
F.conv1d(x, y)
F.conv2d(x[None, :, :, :], x[:1, None, :2, :2].expand(2, 2, 2, 2))
F.conv3d(x[None, None], y[None, None])
F.conv_transpose1d(x, y.transpose(0, 1)[:4, :2])
F.conv_transpose2d(x[None], y[:, None])
F.conv_transpose3d(x[None, None], y[None, None])
F.conv_tbc(x, y, v)
F.prelu(m, v)
F.scaled_dot_product_attention(x, y, x)
nn.GRUCell(4, 3, device=device)(m)
nn.LSTMCell(4, 3, device=device)(m)[0]
nn.RNNCell(4, 3, device=device)(m)
nn.LSTM(4, 3, device=device)(x)[0]
nn.GRU(4, 3, device=device)(x)[0]
nn.Linear(4, 3, device=device)(x.double().float())
nn.Bilinear(4, 4, 3, device=device)(m, m).half()
""",
    "float32 from float16": """
x = torch.rand(2, 4, 4, device=device).half() / 2 + 0.1; y, m, n = x.flip(0), x[0], x[1]
i, j = torch.arange(4, device=device), torch.tensor([1.0, -1, 1, -1], device=device)

x**2
2**x
x**y
1 / x
1.0 / x
x.pow(2)
x.acos()
x.asin()
x.cosh()
x.sinh()
x.tan()
x.exp()
x.expm1()
x.log()
x.log10()
x.log1p()
x.log2()
x.reciprocal()
x.rsqrt()
x.erfinv()
x.sum()
x.sum(1)
x.prod()
x.prod(1)
x.cumsum(0)
x.cumprod(0)
x.norm()
x.norm(dim=1)
torch.linalg.vector_norm(x)
torch.linalg.matrix_norm(x)
x.renorm(2, 0, 1.0)
x.logsumexp(0)
torch.dist(x, y)
torch.cdist(x, y)
F.pdist(m)
F.softmax(x, -1)
F.log_softmax(x, -1)
F.softmin(x, -1)
F.softplus(x)
F.normalize(x)
F.layer_norm(x, (4,))
F.rms_norm(x, (4,))
F.group_norm(x, 2)
F.cosine_similarity(x, y)
F.cosine_embedding_loss(m, n, j)
F.cross_entropy(m, i)
F.nll_loss(m, i)
F.kl_div(m, n)
F.mse_loss(m, n)
F.l1_loss(m, n)
F.smooth_l1_loss(m, n)
F.huber_loss(m, n)
F.hinge_embedding_loss(m, j.half())
F.margin_ranking_loss(m, n, m)
F.multilabel_margin_loss(m, i.expand(4, 4))
F.multi_margin_loss(m, i)
F.poisson_nll_loss(m, n)
F.soft_margin_loss(m, j.half())
F.triplet_margin_loss(m, n, m)
F.binary_cross_entropy_with_logits(m, n)
F.interpolate(x, scale_factor=2)
F.interpolate(x[None], scale_factor=2, mode="bilinear")
""",
    "float32 from both": """
x = torch.rand(2, 4, 4, device=device); h = x.half(); i = torch.zeros(4, 4, dtype=torch.int64, device=device)

torch.addcdiv(x, h, h)
torch.addcmul(h, x, h)
torch.atan2(x, h)
F.bilinear(h[0], x[0], torch.ones(3, 4, 4, device=device))
torch.cross(x[..., :3], h[..., :3], dim=-1)
torch.dot(x[0, 0], h[0, 0])
torch.vdot(x[0, 0], h[0, 0])
F.grid_sample(h[None], x[None, ..., :2], align_corners=False)
x[0].index_put((i[0],), h[0])
torch.scatter_add(x[0], 0, i, h[0])
torch.tensordot(x[0], h[0], 1)
torch.cat([x, h])
torch.stack([h, x])
x + h
""",
    "float16 from float16": """
h = torch.rand(2, 4, 4, device=device).half()

torch.addcmul(h, h, h)
torch.cat([h, h])
h + h
h.relu()
h.mean()
h.tanh()
h.sigmoid()
F.gelu(h)
F.dropout(h)
F.max_pool1d(h, 2)
F.batch_norm(h, None, None, training=True)
h.max()
h.sqrt()
h.abs()
F.pad(h, (1, 1))
""",
}
