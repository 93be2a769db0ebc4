// Protocol 2 of Python's pickles (pickletools.py documents each instruction): a stack of objects, marks in it, and a
// memo of objects that are used again. An object is shared by all who have it, as in Python; what could be in itself, a
// list or an object in a dict, is not kept, so that none is.
#include "exported/pickle.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

namespace tower::exported {
namespace {

constexpr int kProtocol = 2, kDeepestTuple = 16;

struct Object;
using Shared = std::shared_ptr<Object>;

/// A class or function of Python's, by its name.
struct Global {
  std::string name;
};
struct Tuple {
  std::vector<Shared> elements;
  int depth;
};
/// Only the tensors in it, by their names.
using Dict = std::map<std::string, Payload>;
/// A record of the archive with elements of a dtype.
struct StoredElements {
  std::string record;
  at::ScalarType dtype;
  at::Device device;
};
struct Object {
  std::variant<std::monostate, int64_t, std::string, Global, Tuple, Dict, StoredElements, Payload> value;
};

class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : bytes_(bytes) {}

  Dict all() {
    while (step()) {
    }
    return std::move(get<Dict>(*top(), "dict"));
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw FileError("the pickle of its weights " + why + " at byte " + std::to_string(at_));
  }
  template <class T>
  T& get(Object& object, const char* what) const {
    if (T* value = std::get_if<T>(&object.value)) return *value;
    fail(std::string("has no ") + what);
  }

  // ---- bytes ----

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) fail("is cut off");
    const std::string_view part = bytes_.substr(at_, size);
    at_ += size;
    return part;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == bytes_.npos) fail("is cut off");
    const std::string text(take(end - at_));
    ++at_;
    return text;
  }
  /// Little-endian, in two's complement.
  int64_t long_number() {
    const std::string_view part = take(number<uint8_t>());
    if (part.size() > sizeof(int64_t)) fail("has an integer of more than 64 bits");
    const bool negative = !part.empty() && static_cast<int8_t>(part.back()) < 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, part.data(), part.size());
    return value;
  }

  // ---- the stack ----

  template <class T>
  void push(T value) {
    stack_.push_back(std::make_shared<Object>(Object{std::move(value)}));
  }
  const Shared& top() const {
    if (stack_.size() <= bottom()) fail("takes an object from an empty stack");
    return stack_.back();
  }
  Shared pop() {
    Shared object = top();
    stack_.pop_back();
    return object;
  }
  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Shared> pop_to_mark() {
    if (marks_.empty()) fail("goes back to a mark that is not there");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Shared> objects(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return objects;
  }
  std::vector<Shared> pop_several(size_t count) {
    std::vector<Shared> objects(count);
    while (count > 0) objects[--count] = pop();
    return objects;
  }

  // ---- objects ----

  void push_tuple(std::vector<Shared> elements) {
    int depth = 1;
    for (const Shared& element : elements)
      if (const auto* inner = std::get_if<Tuple>(&element->value)) depth = std::max(depth, inner->depth + 1);
    if (depth > kDeepestTuple) fail("nests tuples too deep");
    push(Tuple{std::move(elements), depth});
  }

  void set_items(const std::vector<Shared>& pairs) {
    auto& dict = get<Dict>(*top(), "dict");
    if (pairs.size() % 2 != 0) fail("has a key without a value");
    for (size_t i = 0; i < pairs.size(); i += 2)
      if (const auto* tensor = std::get_if<Payload>(&pairs[i + 1]->value)) {
        const auto& name = get<std::string>(*pairs[i], "name of a tensor");
        copied(name.size() + tensor->record.size() + 2 * tensor->meta.sizes.size());
        dict.insert_or_assign(name, *tensor);
      }
  }

  // What is used again takes two bytes of the pickle: copies of it are no more than the pickle.
  void copied(size_t size) {
    copied_ += size;
    if (copied_ > bytes_.size()) fail("has the same things too often");
  }

  // ("storage", a class for the dtype, the record, the device, how many elements)
  void push_storage() {
    const Shared id = pop();
    const auto& parts = get<Tuple>(*id, "tuple for a storage").elements;
    if (parts.size() != 5 || get<std::string>(*parts[0], "kind of a storage") != "storage") fail("has no storage");
    static const std::map<std::string, at::ScalarType> dtypes = {
        {"torch.ByteStorage", at::kByte},
        {"torch.CharStorage", at::kChar},
        {"torch.ShortStorage", at::kShort},
        {"torch.IntStorage", at::kInt},
        {"torch.LongStorage", at::kLong},
        {"torch.HalfStorage", at::kHalf},
        {"torch.FloatStorage", at::kFloat},
        {"torch.DoubleStorage", at::kDouble},
        {"torch.ComplexFloatStorage", at::kComplexFloat},
        {"torch.ComplexDoubleStorage", at::kComplexDouble},
        {"torch.BoolStorage", at::kBool},
        {"torch.BFloat16Storage", at::kBFloat16},
    };
    const std::string& type = get<Global>(*parts[1], "class of a storage").name;
    const auto dtype = dtypes.find(type);
    if (dtype == dtypes.end()) throw NotSupported("weights in a " + type);
    const std::string& device = get<std::string>(*parts[3], "device of a storage");
    const auto& name = get<std::string>(*parts[2], "name of a storage");
    copied(name.size());
    try {
      push(StoredElements{"data/" + name, dtype->second, at::Device(device)});
    } catch (const c10::Error&) {
      fail("has a storage on no device");
    }
  }

  std::vector<SizeExpression> sizes(Object& object) {
    const auto& elements = get<Tuple>(object, "tuple of sizes").elements;
    copied(elements.size());
    std::vector<SizeExpression> all;
    for (const Shared& size : elements) all.emplace_back(get<int64_t>(*size, "size of a tensor"));
    return all;
  }

  void call() {
    const Shared arguments = pop(), callee = pop();
    const auto& given = get<Tuple>(*arguments, "tuple of arguments").elements;
    const std::string& name = get<Global>(*callee, "function").name;
    if (name == "collections.OrderedDict" && given.empty()) {
      push(Dict());
    } else if (name == "torch._utils._rebuild_tensor_v2" && given.size() == 6) {
      // (storage, offset, sizes, strides, requires_grad, hooks); behind these, bits such as that of a conjugate.
      const auto& storage = get<StoredElements>(*given[0], "storage of a tensor");
      copied(storage.record.size());
      TensorMeta meta{storage.dtype, sizes(*given[2]), sizes(*given[3]), get<int64_t>(*given[1], "offset of a tensor"),
                      storage.device};
      if (meta.sizes.size() != meta.strides.size()) fail("has sizes and strides of different numbers");
      push(Payload{storage.record, std::move(meta)});
    } else if (name == "torch._utils._rebuild_parameter" && given.size() == 3) {
      get<Payload>(*given[0], "tensor of a parameter");
      stack_.push_back(given[0]);
    } else {
      throw NotSupported("a pickle that calls " + name + ", which would be run as code");
    }
  }

  void remember(uint64_t number) { memo_.insert_or_assign(number, top()); }
  void recall(uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) fail("reads an object that it did not make");
    stack_.push_back(found->second);
  }

  // Whether more follow.
  bool step() {
    switch (const auto code = number<uint8_t>(); code) {
      case 0x80:  // PROTO
        if (const int protocol = number<uint8_t>(); protocol != kProtocol)
          throw NotSupported("weights in a pickle of protocol " + std::to_string(protocol) + " (2 is known)");
        return true;
      case '.':  // STOP
        return false;
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return true;
      case 'q':  // BINPUT
        remember(number<uint8_t>());
        return true;
      case 'r':  // LONG_BINPUT
        remember(number<uint32_t>());
        return true;
      case 'h':  // BINGET
        recall(number<uint8_t>());
        return true;
      case 'j':  // LONG_BINGET
        recall(number<uint32_t>());
        return true;
      case 'N':  // NONE
        push(std::monostate());
        return true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push(int64_t{code == 0x88});
        return true;
      case 'J':  // BININT
        push(int64_t{number<int32_t>()});
        return true;
      case 'K':  // BININT1
        push(int64_t{number<uint8_t>()});
        return true;
      case 'M':  // BININT2
        push(int64_t{number<uint16_t>()});
        return true;
      case 0x8a:  // LONG1
        push(long_number());
        return true;
      case 'X':  // BINUNICODE
        push(std::string(take(number<uint32_t>())));
        return true;
      case 'c': {  // GLOBAL
        const std::string module = line();
        push(Global{module + "." + line()});
        return true;
      }
      case ')':  // EMPTY_TUPLE
        push_tuple({});
        return true;
      case 't':  // TUPLE
        push_tuple(pop_to_mark());
        return true;
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
        push_tuple(pop_several(code - 0x84));
        return true;
      case '}':  // EMPTY_DICT
        push(Dict());
        return true;
      case 's':  // SETITEM
        set_items(pop_several(2));
        return true;
      case 'u':  // SETITEMS
        set_items(pop_to_mark());
        return true;
      case 'Q':  // BINPERSID
        push_storage();
        return true;
      case 'R':  // REDUCE
        call();
        return true;
      case 'b':  // BUILD: attributes of a dict, which say of which versions modules are
        pop();
        get<Dict>(*top(), "dict");
        return true;
      default:
        throw NotSupported("a pickle with instruction " + std::to_string(code) +
                           ", which no dict of plain tensors has");
    }
  }

  const std::string_view bytes_;
  size_t at_ = 0, copied_ = 0;
  std::vector<Shared> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Shared> memo_;
};

}  // namespace

std::map<std::string, Payload> read_pickled_payloads(std::string_view pickle) { return PickleReader(pickle).all(); }

}  // namespace tower::exported
