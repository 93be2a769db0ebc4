#include "graph/stored_graph.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <set>
#include <sstream>

#include "core/bind.h"
#include "graph/operand_dims.h"
#include "graph/trace.h"
#include "interpreters/mapped.h"
#include "operators/known_code.h"
#include "tower/errors.h"

namespace tower::compiler {

// ---- tensors -------------------------------------------------------------------------------------------------------

namespace {

// The plain tensor, whatever autograd follows it: a file has its values alone.
Tensor plain(const Tensor& t) {
  if (as_wrapper(t) || !t.device().is_cpu() || t.layout() != at::kStrided || !t.has_storage() || t.is_quantized())
    throw UnsupportedError("save: the function captured " + describe(t) +
                           ", which is not a dense tensor on the CPU. Pass it as an argument.");
  return without_lazy_conjugation(t.detach());
}

int64_t number_of(at::ScalarType dtype) { return static_cast<int64_t>(dtype); }

constexpr int64_t kMostDims = 64;

void check_sizes(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  const auto negative = [](int64_t n) { return n < 0; };
  if (sizes.size() != strides.size() || sizes.size() > static_cast<size_t>(kMostDims) ||
      std::any_of(sizes.begin(), sizes.end(), negative) || std::any_of(strides.begin(), strides.end(), negative))
    ByteReader::fail();
}

// A tensor has to end within its memory, of `most` elements: LibTorch would make the memory larger instead.
void check_fits(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset, int64_t most) {
  int64_t numel = 1, last = offset;
  bool too_much = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t step = 0;
    too_much |= __builtin_mul_overflow(numel, sizes[d], &numel) ||
                __builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &step) ||
                __builtin_add_overflow(last, step, &last);
  }
  if (too_much || (numel > 0 && last >= most)) ByteReader::fail();
}

}  // namespace

at::ScalarType read_dtype(ByteReader& in) {
  return static_cast<at::ScalarType>(in.index(static_cast<size_t>(at::ScalarType::NumOptions)));
}

int64_t TensorWriter::number_of(const Tensor& t) {
  const auto [known, is_new] = numbers_.try_emplace(t.unsafeGetTensorImpl(), static_cast<int64_t>(tensors_.size()));
  if (is_new) tensors_.push_back(plain(t));
  return known->second;
}

void TensorWriter::write(ByteWriter& out) const {
  std::unordered_map<const c10::StorageImpl*, size_t> numbers;
  std::vector<const c10::StorageImpl*> storages;
  for (const Tensor& t : tensors_)
    if (numbers.try_emplace(t.storage().unsafeGetStorageImpl(), storages.size()).second)
      storages.push_back(t.storage().unsafeGetStorageImpl());
  out.list(storages, [&](const c10::StorageImpl* s) {
    out.text({static_cast<const char*>(s->data()), s->data() ? s->nbytes() : 0});
  });
  out.list(tensors_, [&](const Tensor& t) {
    out.number(static_cast<int64_t>(numbers.at(t.storage().unsafeGetStorageImpl())));
    out.number(compiler::number_of(t.scalar_type()));
    out.numbers(t.sizes());
    out.numbers(t.strides());
    out.number(t.storage_offset());
    out.number(t.unsafeGetTensorImpl()->is_wrapped_number());
  });
}

std::vector<Tensor> read_tensors(ByteReader& in) {
  DispatchGuard keys;
  keys.see_no_operator();
  std::vector<Tensor> storages, tensors;
  for (size_t n = in.count(); n-- > 0;) {
    const std::string_view bytes = in.text();
    storages.push_back(at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte)));
    if (!bytes.empty()) std::memcpy(storages.back().mutable_data_ptr(), bytes.data(), bytes.size());
  }
  for (size_t n = in.count(); n-- > 0;) {
    const Tensor& storage = storages.at(in.index(storages.size()));
    const at::ScalarType dtype = read_dtype(in);
    const auto sizes = in.numbers<std::vector<int64_t>>(), strides = in.numbers<std::vector<int64_t>>();
    const int64_t offset = in.number();
    check_sizes(sizes, strides);
    if (offset < 0 || dtype == at::ScalarType::Undefined || c10::isQIntType(dtype)) ByteReader::fail();
    Tensor t = at::empty({0}, at::TensorOptions(dtype));
    check_fits(sizes, strides, offset, storage.numel() / static_cast<int64_t>(t.element_size()));
    t.set_(storage.storage(), offset, sizes, strides);
    if (in.number()) t.unsafeGetTensorImpl()->set_wrapped_number(true);
    tensors.push_back(std::move(t));
  }
  return tensors;
}

// ---- attributes ----------------------------------------------------------------------------------------------------

namespace {

const Tensor& hole() {
  static const auto& hole = *new Tensor(at::detail::empty_cpu({0}, at::TensorOptions(at::kFloat)));
  return hole;
}

int64_t bits_of(double d) { return std::bit_cast<int64_t>(d); }
double double_of(int64_t bits) { return std::bit_cast<double>(bits); }

enum class ValueKind : uint8_t {
  none,
  undefined,
  tensor,
  integer,
  real,
  boolean,
  complex,
  text,
  device,
  integers,
  reals,
  booleans,
  tensors,
  optional_tensors,
  end
};

// False where a value of this type cannot be written.
bool write_value(ByteWriter& out, const IValue& v) {
  const auto begin = [&](ValueKind kind) { out.number(static_cast<int64_t>(kind)); };
  if (v.isNone()) {
    begin(ValueKind::none);
  } else if (v.isTensor()) {
    begin(v.toTensor().defined() ? ValueKind::tensor : ValueKind::undefined);
  } else if (v.isInt()) {
    begin(ValueKind::integer);
    out.number(v.toInt());
  } else if (v.isDouble()) {
    begin(ValueKind::real);
    out.number(bits_of(v.toDouble()));
  } else if (v.isBool()) {
    begin(ValueKind::boolean);
    out.number(v.toBool());
  } else if (v.isComplexDouble()) {
    begin(ValueKind::complex);
    out.number(bits_of(v.toComplexDouble().real()));
    out.number(bits_of(v.toComplexDouble().imag()));
  } else if (v.isString()) {
    begin(ValueKind::text);
    out.text(v.toStringRef());
  } else if (v.isDevice()) {
    begin(ValueKind::device);
    out.text(v.toDevice().str());
  } else if (v.isIntList()) {
    begin(ValueKind::integers);
    out.numbers(v.toIntVector());
  } else if (v.isDoubleList()) {
    begin(ValueKind::reals);
    out.list(v.toDoubleVector(), [&](double d) { out.number(bits_of(d)); });
  } else if (v.isBoolList()) {
    begin(ValueKind::booleans);
    const c10::List<bool> list = v.toBoolList();
    out.list(list, [&](bool b) { out.number(b); });
  } else if (v.isTensorList() || v.isOptionalTensorList()) {
    begin(v.isTensorList() ? ValueKind::tensors : ValueKind::optional_tensors);
    out.list(v.toListRef(),
             [&](const IValue& element) { out.number(element.isTensor() && element.toTensor().defined()); });
  } else {
    return false;
  }
  return true;
}

IValue read_value(ByteReader& in) {
  switch (static_cast<ValueKind>(in.index(static_cast<size_t>(ValueKind::end)))) {
    case ValueKind::none:
      return {};
    case ValueKind::undefined:
      return Tensor();
    case ValueKind::tensor:
      return hole();
    case ValueKind::integer:
      return in.number();
    case ValueKind::real:
      return double_of(in.number());
    case ValueKind::boolean:
      return in.number() != 0;
    case ValueKind::complex: {
      const double real = double_of(in.number());
      return c10::complex<double>(real, double_of(in.number()));
    }
    case ValueKind::text:
      return std::string(in.text());
    case ValueKind::device:
      return at::Device(std::string(in.text()));
    case ValueKind::integers:
      return in.numbers<std::vector<int64_t>>();
    case ValueKind::reals: {
      std::vector<double> numbers;
      for (size_t n = in.count(); n-- > 0;) numbers.push_back(double_of(in.number()));
      return numbers;
    }
    case ValueKind::booleans: {
      c10::List<bool> list;
      for (size_t n = in.count(); n-- > 0;) list.push_back(in.number() != 0);
      return list;
    }
    case ValueKind::tensors: {
      c10::List<Tensor> list;
      for (size_t n = in.count(); n-- > 0;) list.push_back(in.number() ? hole() : Tensor());
      return list;
    }
    case ValueKind::optional_tensors: {
      c10::List<std::optional<Tensor>> list;
      for (size_t n = in.count(); n-- > 0;) list.push_back(in.number() ? std::optional(hole()) : std::nullopt);
      return list;
    }
    case ValueKind::end:
      break;
  }
  ByteReader::fail();
}

// ---- operators -----------------------------------------------------------------------------------------------------

std::string schema_of(const Operator& op) {
  std::ostringstream text;
  text << op.schema();
  return text.str();
}

const Operator& find_operator(ByteReader& in) {
  const std::string name(in.text()), overload(in.text()), schema(in.text());
  const Operator* op = Operator::find(name.c_str(), overload.c_str());
  const std::string full = name + (overload.empty() ? "" : "." + overload);
  if (!op)
    throw ArgumentError("load: the function calls the operator " + full +
                        ", which is not there. Load the library that brings it first.");
  if (schema_of(*op) != schema)
    throw ArgumentError("load: the operator " + full + " is " + schema_of(*op) + ", and the function was saved with " +
                        schema);
  return *op;
}

// Labels of levels are literals.
const char* literal(std::string_view text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>>& known = *new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  return known.emplace(text).first->c_str();
}

uint64_t new_axis() { return c10::make_intrusive<Vmap>(1, Randomness::error, "vmap")->axis(); }

}  // namespace

// ---- graphs --------------------------------------------------------------------------------------------------------

void GraphWriter::write_call(const Call& call) {
  ByteWriter& out = out_;
  out.number(!call.op->handle());
  if (call.op->handle()) {
    out.text(call.op->schema().name());
    out.text(call.op->schema().overload_name());
    out.text(schema_of(*call.op));
  } else if (const KnownCode* code = known_code(*call.op); !code || !code->store(*this)) {
    throw UnsupportedError(
        "save: the function calls " + call.op->name() +
        ", which is code of its own and cannot be written to a file. Leave it outside of the "
        "compiled function, or write it with operators; a branch of cond and the function of a checkpoint have to "
        "compute what they return and nothing else, both branches have to return the same kinds of tensors, and a "
        "checkpoint is to keep nothing.");
  }
  out.number(static_cast<int64_t>(call.args.size()));
  for (size_t i = 0; i < call.args.size(); ++i)
    if (!write_value(out, call.args[i]))
      throw UnsupportedError("save: " + call.op->name() + " is called with an argument '" + call.op->argument_name(i) +
                             "' that cannot be written to a file (a " + call.args[i].tagKind() + ").");
  out.list(call.places, [&](const LeafRef& place) {
    out.number(place.arg);
    out.number(place.element);
  });
  out.numbers(call.operands);
  out.numbers(call.results);
  out.number(call.records);
  out.number(call.effect);
  const Operator* op = call.bound;
  out.list(call.vmaps, [&](const Mapped& mapped) {
    const ImageOf image = *image_of(*op);
    if (image.make_level)
      throw UnsupportedError(
          "save: the function calls " + call.op->name() +
          " for the examples of a named axis, which cannot be written to a file. Leave the vmap that "
          "names it outside of the compiled function.");
    out.number(static_cast<int64_t>(mapped.axis));
    out.number(mapped.batch_size);
    out.numbers(mapped.dims);
    out.number(static_cast<int64_t>(image.randomness));
    out.text(image.label);
    out.number(image.draws);
    op = &image.base;
  });
}

void GraphWriter::write(const Graph& graph) {
  ByteWriter& out = out_;
  out.list(graph.values, [&](const Value& v) {
    out.number(static_cast<int64_t>(v.origin));
    out.numbers(v.sizes);
    out.numbers(v.strides);
    out.number(number_of(v.dtype));
    out.text(v.device.str());
    out.number(v.number);
    out.number(v.tensor.defined() ? tensors_.number_of(v.tensor) : -1);
  });
  out.numbers(graph.arguments);
  out.numbers(graph.results);
  out.list(graph.calls, [&](const Call& call) { write_call(call); });
}

namespace {

// Whether an attribute is of the type that the operator's schema asks for. LibTorch would take any other for it.
bool is_of(const IValue& v, const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return v.isNone() || is_of(v, type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType:
      return v.isTensor();  // one that is undefined has no type
    case c10::TypeKind::NumberType:
      return v.isScalar() || v.isBool();
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::IntType:
      return v.isInt();
    case c10::TypeKind::ListType: {
      const auto element = type->castRaw<c10::ListType>()->getElementType();
      switch (element->kind()) {
        case c10::TypeKind::SymIntType:
        case c10::TypeKind::IntType:
          return v.isIntList();
        case c10::TypeKind::OptionalType:
          return v.isOptionalTensorList();
        default:
          return v.type()->isSubtypeOf(*type);
      }
    }
    default:
      return v.type()->isSubtypeOf(*type);
  }
}

// The tensors among the arguments are where the operands go, and nothing else is missing or too much.
void check_call(const Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i)
    if (!is_of(call.args[i], call.op->schema().arguments()[i].real_type())) ByteReader::fail();
  size_t next = 0;
  for_each_tensor(*call.op, call.args, [&](const Tensor&, LeafRef leaf) {
    if (next >= call.places.size() || leaf.arg != call.places[next].arg || leaf.element != call.places[next].element)
      ByteReader::fail();
    ++next;
  });
  if (next != call.places.size() || next != call.operands.size()) ByteReader::fail();
  const auto& returns = call.op->schema().returns();
  const bool lists = std::any_of(returns.begin(), returns.end(),
                                 [](const c10::Argument& r) { return r.type()->kind() == c10::TypeKind::ListType; });
  if (!lists && !call.op->mutates() && call.results.size() != returns.size()) ByteReader::fail();
}

// Of what a vmap maps there is the dimension.
void check_mapped(const Graph& graph, const Call& call) {
  for (size_t k = 0; k < call.operands.size(); ++k) {
    if (call.operands[k] == kNoValue) ByteReader::fail();
    auto left = static_cast<int64_t>(graph.values[call.operands[k]].sizes.size());
    for (const Mapped& mapped : call.vmaps)
      if (mapped.dims[k] != VmapFrame::kUnbatched && mapped.dims[k] >= left--) ByteReader::fail();
  }
}

// Code that is known takes what it is given as it was made for.
void check_kinds(const Graph& graph, const Call& call) {
  const KnownCode* code = known_code(*call.op);
  if (!code) return;
  const auto kinds = code->kinds();
  if (!kinds || kinds->operands.size() != call.operands.size() || kinds->results.size() != call.results.size() ||
      !call.args[1].isNone())
    ByteReader::fail();
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& v = graph.values[call.operands[k]];
    KnownCode::Kind kind{{}, v.dtype};
    for (const int64_t d : seen(call, k, v.sizes.size(), kNoAxis).of_example)
      kind.sizes.push_back(v.sizes[static_cast<size_t>(d)]);
    if (kind != kinds->operands[k]) ByteReader::fail();
  }
  for (size_t k = 0; k < call.results.size(); ++k) {
    if (call.results[k] == kNoValue) continue;
    const Value& v = graph.values[call.results[k]];
    if (v.sizes != sizes_of_all(call, kinds->results[k].sizes) || v.dtype != kinds->results[k].dtype)
      ByteReader::fail();
  }
}

// Values are there before they are read.
void check_order(const Graph& graph) {
  ById<ValueId, bool> there(graph.values.size());
  const auto make = [&](ValueId id) {
    if (id == kNoValue) return;
    if (there[id]) ByteReader::fail();
    there[id] = true;
  };
  const auto read = [&](ValueId id) {
    if (id == kNoValue || !there[id]) ByteReader::fail();
  };
  for (const ValueId id : graph.values.ids()) {
    const Value& v = graph.values[id];
    const bool held = v.origin == Origin::captured || v.origin == Origin::constant;
    if (v.tensor.defined() && !held) ByteReader::fail();  // one that nobody reads is not there
    check_sizes(std::vector<int64_t>(v.sizes.begin(), v.sizes.end()),
                std::vector<int64_t>(v.strides.begin(), v.strides.end()));
    if (v.tensor.defined()) make(id);
  }
  for (const ValueId id : graph.arguments) make(id);
  for (const Call& call : graph.calls) {
    std::for_each(call.operands.begin(), call.operands.end(), read);
    std::for_each(call.results.begin(), call.results.end(), make);
  }
  std::for_each(graph.results.begin(), graph.results.end(), read);
}

}  // namespace

Call GraphReader::read_call(ByteReader& in, const Graph& graph) {
  const auto check = [&](const std::vector<ValueId>& ids) {
    for (const ValueId id : ids)
      if (id < kNoValue || id >= graph.values.next_id()) ByteReader::fail();
  };
  Call call;
  if (in.number()) call.owner = read_code_(*this, in);
  call.op = call.bound = call.owner ? call.owner.get() : &find_operator(in);
  if (in.count() != call.op->num_args()) ByteReader::fail();
  for (size_t i = 0; i < call.op->num_args(); ++i) call.args.push_back(read_value(in));
  for (size_t n = in.count(); n-- > 0;) {
    const auto arg = static_cast<uint8_t>(in.index(call.op->num_args()));
    call.places.push_back({arg, static_cast<uint16_t>(in.number())});
  }
  call.operands = in.numbers<std::vector<ValueId>>();
  call.results = in.numbers<std::vector<ValueId>>();
  check(call.operands);
  check(call.results);
  check_call(call);
  call.records = in.number() != 0;
  call.effect = in.number() != 0;

  struct Vmapped {
    Randomness randomness;
    const char* label;
    bool draws;
  };
  std::vector<Vmapped> vmaps;
  for (size_t n = in.count(); n-- > 0;) {
    Mapped mapped{};
    const auto [axis, is_new] = axes_.try_emplace(in.number(), 0);
    if (is_new) axis->second = new_axis();
    mapped.axis = axis->second;
    mapped.batch_size = in.number();
    mapped.dims = in.numbers<std::vector<int64_t>>();
    if (mapped.dims.size() != call.operands.size() || mapped.batch_size < 0) ByteReader::fail();
    for (const int64_t dim : mapped.dims)
      if (dim != VmapFrame::kUnbatched && (dim < 0 || dim >= kMostDims)) ByteReader::fail();
    call.vmaps.push_back(std::move(mapped));
    const auto randomness = static_cast<Randomness>(in.index(static_cast<size_t>(Randomness::same) + 1));
    const char* label = literal(in.text());
    vmaps.push_back({randomness, label, in.number() != 0});
  }
  check_mapped(graph, call);
  check_kinds(graph, call);
  // The image of the operator, then the images of that.
  Stack args = call.args;
  std::vector<LeafRef> leaves = call.places;
  for (size_t v = vmaps.size(); v-- > 0;) {
    const Mapped& mapped = call.vmaps[v];
    call.owner = image_from({*call.bound, args, leaves, mapped.dims, mapped.batch_size, mapped.axis,
                             vmaps[v].randomness, vmaps[v].label, Vmap::MakeLevel(), vmaps[v].draws});
    call.bound = call.owner.get();
    c10::List<Tensor> holes;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      holes.push_back(hole());
      leaves[k] = {0, static_cast<uint16_t>(k)};
    }
    args.assign(1, IValue(std::move(holes)));
  }
  return call;
}

Graph GraphReader::read(ByteReader& in) {
  constexpr int kDeepest = 32;  // graphs in code in graphs
  if (++depth_ > kDeepest) ByteReader::fail();
  Graph graph;
  for (size_t n = in.count(); n-- > 0;) {
    Value v;
    v.origin = static_cast<Origin>(in.index(static_cast<size_t>(Origin::result) + 1));
    v.sizes = in.numbers<Sizes>();
    v.strides = in.numbers<Sizes>();
    v.dtype = read_dtype(in);
    v.device = at::Device(std::string(in.text()));
    v.number = in.number() != 0;
    if (const int64_t tensor = in.number(); tensor >= 0) {
      if (tensor >= static_cast<int64_t>(tensors_.size())) ByteReader::fail();
      v.tensor = tensors_[static_cast<size_t>(tensor)];
    }
    graph.values.add(std::move(v));
  }
  const auto ids = [&] {
    auto list = in.numbers<std::vector<ValueId>>();
    for (const ValueId id : list)
      if (id < kNoValue || id >= graph.values.next_id()) ByteReader::fail();
    return list;
  };
  graph.arguments = ids();
  graph.results = ids();
  for (size_t n = in.count(); n-- > 0;) graph.calls.push_back(read_call(in, graph));
  check_order(graph);
  --depth_;
  return graph;
}

}  // namespace tower::compiler
