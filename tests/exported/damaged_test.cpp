// Files that are damaged, cut off, or made to do harm: each is an error, or means what it meant. The records of a file
// that Python wrote are written again with something else in them.
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "exported/archive.h"
#include "exported/crc32.h"
#include "exported/guards.h"
#include "exported/models.h"
#include "exported/pickle.h"
#include "exported/rewritten.h"
#include "exported/sizes.h"
#include "support/prelude.h"
#include "tower/exported.h"

namespace {

using namespace std::string_literals;

using exported_models::entries_of;
using exported_models::Entry;
using exported_models::expected;
using exported_models::Exported;
using exported_models::file;
using exported_models::find;
using exported_models::written;
using exported_models::zip;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

constexpr const char* kModel = "models/model.json";
constexpr const char* kWeights = "data/weights/model_weights_config.json";

/// The message of the load of a file with `from` replaced by `to` in one of its records.
std::string refused(const std::string& name, const std::string& record, const std::string& from,
                    const std::string& to) {
  auto entries = entries_of(name);
  std::string& text = find(entries, record).bytes;
  const size_t at = text.find(from);
  if (at == text.npos) return "there is no " + from;
  text.replace(at, from.size(), to);
  const std::string path = written(zip(entries));
  try {
    td::load_exported(path);
  } catch (const tower::Error& e) {
    return e.what();
  }
  return "it was loaded";
}

TEST_F(Exported, AFileThatIsWrittenAgainIsTheSameModel) {
  const auto all = expected("experts");
  const auto model = td::load_exported(written(zip(entries_of("experts"))));
  EXPECT_TRUE(same(model({all.at("0.arg.0")})[0], all.at("0.out.0")));
}

/// How many of so many files with a bit that is another are errors; the others are the same model.
int errors_of_damaged(const std::string& name, const Tensor& x, const Tensor& expected, int tries) {
  const std::string bytes = bytes_of(file(name));
  std::mt19937 random(1);
  int errors = 0;
  for (int n = 0; n < tries; ++n) {
    std::string damaged = bytes;
    const size_t at = random() % damaged.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    const std::string path = written(damaged);
    try {
      EXPECT_TRUE(same(td::load_exported(path)({x})[0], expected)) << name << ", byte " << at;
    } catch (const tower::Error& e) {
      ++errors;
      EXPECT_TRUE(contains(e.what(), path)) << e.what();
    }
  }
  return errors;
}

TEST_F(Exported, AByteThatIsAnotherIsAnErrorOrChangesNothing) {
  const auto experts = expected("experts"), training = expected("training");
  // The rest is padding, example inputs, and fields of the archive that nobody reads.
  EXPECT_GT(errors_of_damaged("experts", experts.at("0.arg.0"), experts.at("0.out.0"), 200), 50);
  for (const std::string name : {"training.2_7", "training.2_8"})
    EXPECT_GT(errors_of_damaged(name, training.at("arg"), training.at("0.out"), 100), 25);
}

TEST_F(Exported, AFileThatIsCutOffIsAnError) {
  const std::string bytes = bytes_of(file("perceptron"));
  std::mt19937 random(2);
  for (int n = 0; n < 100; ++n) {
    const std::string path = written(bytes.substr(0, random() % bytes.size()));
    EXPECT_THROW(td::load_exported(path), tower::ArgumentError);
  }
}

/// Where values that are no lists or objects begin and end in a JSON text.
std::vector<std::pair<size_t, size_t>> tokens(const std::string& json) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = 0; at < json.size();) {
    size_t end = at + 1;
    if (json[at] == '"') {
      while (json[end] != '"') end += json[end] == '\\' ? 2 : 1;
      found.emplace_back(at, ++end);
    } else if (std::strchr("-0123456789tfn", json[at])) {
      end = json.find_first_of(",]} ", at);
      found.emplace_back(at, end);
    }
    at = end;
  }
  return found;
}

TEST_F(Exported, JsonThatIsAnotherIsAnErrorOrAnotherModel) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const std::string others[] = {"null",
                                "true",
                                "-1",
                                "0",
                                "7",
                                "9223372036854775807",
                                "99999999999999999999",
                                "1e999",
                                "\"x\"",
                                "\"\"",
                                "[]",
                                "{}",
                                "[{}]",
                                "{\"as_none\": true}",
                                deep};
  std::mt19937 random(3);
  int errors = 0;
  constexpr int kTries = 300;
  for (int n = 0; n < kTries; ++n) {
    const std::string name = n % 3 == 0 ? "experts" : n % 3 == 1 ? "sizes" : "cumulative";
    auto entries = entries_of(name);
    std::string& text = find(entries, n % 5 == 0 ? kWeights : kModel).bytes;
    const auto places = tokens(text);
    if (places.empty()) continue;
    const auto [begin, end] = places[random() % places.size()];
    text.replace(begin, end - begin, others[random() % std::size(others)]);
    const std::string path = written(zip(entries));
    const auto all = expected(name);
    try {
      const auto model = td::load_exported(path);
      if (name == "sizes") model({all.at("4.a"), all.at("4.b")});
      else if (name == "experts") model({all.at("0.arg.0")});
      else model({all.at("0.arg.0"), all.at("0.arg.1")});
    } catch (const tower::Error&) {
      ++errors;
    } catch (const c10::Error&) {
      ++errors;  // an operator that was given something else
    }
  }
  EXPECT_GT(errors, kTries / 3);
}

TEST_F(Exported, WhatIsWrongIsNamedWithItsPlace) {
  struct Case {
    const char *record, *from, *to, *says;
  };
  const Case cases[] = {
      {kModel, "{", "", "the model is no JSON"},
      {kModel, "\"nodes\": [", "\"nodes\": 7, \"x\": [", "model.graph_module.graph.nodes is no list"},
      {kModel, "\"target\": \"torch.ops.aten.linear.default\"", "\"target\": 3",
       "model.graph_module.graph.nodes[0].target is no string"},
      {kModel, "torch.ops.aten.linear.default", "torch.ops.aten.no_such_operator.default",
       "torch.ops.aten.no_such_operator.default"},
      {kModel, "torch.ops.aten.linear.default", "torch.ops.aten.from_file.default", "torch.ops.aten.from_file.default"},
      {kModel, "torch.ops.aten.linear.default", "os.system", "os.system"},
      {kModel, "torch.ops.higher_order.cond", "torch.ops.higher_order.unheard_of", "torch.ops.higher_order.unheard_of"},
      {kModel, "torch.ops.higher_order.cond", "torch.ops.higher_order.scan", "has other operands than that operator"},
      {kModel, "{\"name\": \"input\", \"arg\": {\"as_tensor\": {\"name\": \"x\"}}",
       "{\"name\": \"input\", \"arg\": {\"as_tensor\": {\"name\": \"cond\"}}", "which nothing before it makes"},
      {kModel, "{\"name\": \"input\", \"arg\": {\"as_tensor\": {\"name\": \"x\"}}",
       "{\"name\": \"output\", \"arg\": {\"as_tensor\": {\"name\": \"x\"}}", "has an argument \"output\""},
      {kModel, "\"as_tensor\": {\"name\": \"x\"}", "\"as_tensor\": {\"name\": \"x\"}, \"as_int\": 1",
       "is none of its types, or several"},
      {kModel, "\"as_tensor\": {\"name\": \"x\"}", "\"as_void\": {\"name\": \"x\"}", "an argument of the type as_void"},
      {kModel, "\"major\": 8", "\"major\": 9", "a file of version 9."},
      {kModel, "\"parameter_name\": \"gate.weight\"", "\"parameter_name\": \"gate\"", "weight \"gate\" is missing"},
      {kModel, "\"input_specs\": [", "\"input_specs\": [{\"token\": {}}, ",
       "the signature has 10 inputs, and the graph 9"},
      {kModel, "\"input_specs\": [", "\"input_specs\": [{\"soul\": {}}, ", "an input of the type soul"},
      {kModel, "\"guards_code\": []", "\"guards_code\": [\"os.remove('x')\"]", "the guard \"os.remove('x')\""},
      {kModel, "\"guards_code\": []", "\"guards_code\": [\"L['z'].size()[0] == 1\"]", "an argument that is not there"},
      {kWeights, "\"path_name\": \"weight_0\"", "\"path_name\": \"../../weight_0\"",
       "\"data/weights/../../weight_0\" is missing"},
      {kWeights, "\"use_pickle\": false", "\"use_pickle\": true", "which would be run as code"},
      {kWeights, "\"as_int\": 3", "\"as_int\": 300", "lies outside of its record"},
      {kWeights, "\"as_int\": 3", "\"as_int\": -3", "has a size or stride that is no number from 0 on"},
      {kWeights, "\"as_int\": 3", "\"as_int\": 9223372036854775807", "weight \""},
      {kWeights, "\"as_int\": 3", "\"as_int\": 9223372036854775808", "is an integer of more than 64 bits"},
      {kWeights, "\"storage_offset\": {\"as_int\": 0}", "\"storage_offset\": {\"as_int\": 2}",
       "lies outside of its record"},
      {kWeights, "\"dtype\": 8", "\"dtype\": 99", "is no dtype: 99"},
      {kWeights, "\"type\": \"cpu\"", "\"type\": \"cuda\"", "on the device cuda"},
      {kWeights, "\"type\": \"cpu\"", "\"type\": \"abacus\"", "is no device: abacus"},
      {"archive_format", "pt2", "pt3", "its format is \"pt3\""},
      {"archive_version", "0", "1", "an archive of version 1"},
  };
  for (const Case& c : cases) {
    const std::string text = refused("experts", c.record, c.from, c.to);
    EXPECT_TRUE(contains(text, c.says)) << c.from << " as " << c.to << ":\n" << text.substr(0, 500);
  }
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// As the schema has it: a later version of the same major number has more fields, which those who do not know them pass
// over; a value of a type that is not known is another matter (as_void, above).
TEST_F(Exported, AFileOfALaterVersionIsReadWithoutTheFieldsThatAreNew) {
  auto entries = entries_of("experts");
  std::string& model = find(entries, kModel).bytes;
  const size_t before = model.size();
  replace_all(model, "\"minor\": ", "\"micro\": 1, \"minor\": 9");
  for (const char* field : {"\"target\": ", "\"requires_grad\": ", "\"tensor_values\": ", "\"input_specs\": ",
                            "\"parameter_name\": ", "\"guards_code\": ", "\"module_call_graph\": ", "\"in_spec\": "})
    replace_all(model, field, std::string("\"later\": [{\"as_void\": null}], ") + field);
  EXPECT_GT(model.size(), before + 1000);
  replace_all(find(entries, kWeights).bytes, "\"use_pickle\": ", "\"later\": {\"kind\": 3}, \"use_pickle\": ");
  entries.push_back({entries.front().name.substr(0, entries.front().name.find('/') + 1) + "data/later/record", "new"});
  const auto all = expected("experts");
  EXPECT_TRUE(same(td::load_exported(written(zip(entries)))({all.at("0.arg.0")})[0], all.at("0.out.0")));
}

TEST_F(Exported, ADirectoryThatLiesIsNotBelieved) {
  const auto refused = [&](const std::function<void(Entry&)>& change) {
    auto entries = entries_of("perceptron");
    change(find(entries, "data/weights/weight_0"));
    const std::string path = written(zip(entries));
    return message_of<tower::ArgumentError>([&] { td::load_exported(path); });
  };
  const auto says = [](const std::string& text, const char* part) { EXPECT_TRUE(contains(text, part)) << text; };
  says(refused([](Entry& e) { e.stated_size = 0xfffffff0; }), "is larger than the file");
  says(refused([](Entry& e) { e.stated_offset = 0xfffffff0; }), "lies outside of the file");
  says(refused([](Entry& e) { e.stated_offset = 1; }), "is not where the directory says");
  says(refused([](Entry& e) { e.method = 8; }), "is compressed");
  says(refused([](Entry& e) { e.name = "model/../../etc/passwd"; }), "leaves the archive");
  says(refused([](Entry& e) { e.name = "/etc/passwd"; }), "leaves the archive");
  says(refused([](Entry& e) { e.name = "other/data/weights/weight_0"; }), "is not in the folder of the others");
  says(refused([](Entry& e) { e.name = "model/models/model.json"; }), "is there twice");
  says(refused([](Entry& e) { e.bytes.clear(); }), "was not stored");
}

TEST_F(Exported, AWeightThatIsDamagedIsFoundByItsChecksum) {
  std::string bytes = bytes_of(file("perceptron"));
  const auto model = td::load_exported(file("perceptron"));
  const Tensor weight = model.parameters().at("net.0.weight");
  const std::string_view values(static_cast<const char*>(weight.data_ptr()), weight.nbytes());
  const size_t at = bytes.find(values);
  ASSERT_NE(at, bytes.npos);
  bytes[at + 3] = static_cast<char>(bytes[at + 3] ^ 1);
  const std::string path = written(bytes);
  const auto text = message_of<tower::ArgumentError>([&] { td::load_exported(path); });
  EXPECT_TRUE(contains(text, "record \"data/weights/weight_0\" is damaged")) << text;
}

TEST(ExportedFiles, ThePicklesOfOlderLayoutsAreNotRun) {
  const auto refused = [](const std::string& pickle) -> std::string {
    try {
      tower::exported::read_pickled_payloads(pickle);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "it was read";
  };
  const auto says = [&](const std::string& pickle, const char* part) {
    EXPECT_TRUE(contains(refused(pickle), part)) << refused(pickle);
  };
  const std::string begin = "\x80\x02";
  says(begin + "}.", "it was read");
  // What pickle.dumps makes of an object whose __reduce__ says os.system("true").
  says(begin + "cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03."s, "calls posix.system");
  says("\x80\x04}.", "protocol 4");
  says(begin + "].", "instruction 93");
  says(begin + "K\x01.", "has no dict");
  says("", "is cut off");
  says(begin + "X\xff\xff\xff\xffx", "is cut off");
  says(begin + ".", "an empty stack");
  says(begin + "t.", "a mark that is not there");
  says(begin + "}(K\x01u.", "a key without a value");
  says(begin + "h\x07.", "did not make");
  says(begin + "(Q", "an empty stack");
  says(begin + "\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01.", "more than 64 bits");
  says(begin + ")" + std::string(100000, '\x85'), "nests tuples too deep");
  // A tensor of a thousand sizes that is made again and again of the same tuples.
  std::string wide = begin + "((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"s +
                     "0X\x03\x00\x00\x00"s + "cpuK\x01tQq\x00K\x00("s;
  for (int n = 0; n < 1000; ++n) wide += "K\x01";
  wide += "tq\x01h\x01\x89Ntq\x02"s;
  for (int n = 0; n < 1000; ++n) wide += "ctorch._utils\n_rebuild_tensor_v2\nh\x02R"s;
  says(wide, "the same things too often");
}

TEST(ExportedFiles, HaveTheChecksumOfTheirDefinition) {
  using tower::exported::crc32_of;
  EXPECT_EQ(crc32_of("123456789", 9), 0xcbf43926);  // the check value of this CRC
  std::mt19937 random(4);
  std::string bytes(1100, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  // A bit at a time, of all lengths where the ways to compute it change, at even and odd addresses.
  for (size_t size = 0; size < bytes.size() - 3; size += size < 300 ? 1 : 67) {
    const size_t at = size % 3;
    uint32_t crc = ~uint32_t{0};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      const uint32_t next = static_cast<uint8_t>(bytes[at + bit / 8]) >> bit % 8 & 1;
      crc = (crc >> 1) ^ ((crc ^ next) & 1 ? 0xedb88320 : 0);
    }
    EXPECT_EQ(crc32_of(bytes.data() + at, size), ~crc) << size;
  }
}

TEST(ExportedSizes, AreParsedAndEvaluated) {
  using tower::exported::SizeExpression;
  const auto s = "Symbol('s0', positive=True, integer=True)";
  const auto at = [&](const std::string& text, int64_t n) {
    return SizeExpression::parse(text).evaluate({{"s0", n}}).value_or(-1);
  };
  const std::string S = s;
  EXPECT_EQ(at("Integer(7)", 0), 7);
  EXPECT_EQ(at("Add(Mul(Integer(2), " + S + "), Integer(-1))", 5), 9);
  EXPECT_EQ(at("Mul(Rational(1, 2), " + S + ")", 6), 3);
  EXPECT_EQ(at("Mul(Rational(1, 2), " + S + ")", 7), -1);
  EXPECT_EQ(at("Pow(" + S + ", Integer(2))", 5), 25);
  EXPECT_EQ(at("FloorDiv(Add(Integer(-7), " + S + "), Integer(2))", 0), -4);
  EXPECT_EQ(at("CeilDiv(" + S + ", Integer(2))", 7), 4);
  EXPECT_EQ(at("Mod(" + S + ", Integer(3))", 7), 1);
  EXPECT_EQ(at("PythonMod(Mul(Integer(-1), " + S + "), Integer(3))", 7), 2);
  EXPECT_EQ(at("Max(Integer(3), " + S + ")", 2), 3);
  EXPECT_EQ(at("Min(Integer(3), " + S + ")", 2), 2);
  EXPECT_EQ(at("Mul(Integer(9223372036854775807), " + S + ")", 2), -1);
  EXPECT_EQ(at("FloorDiv(" + S + ", Integer(0))", 2), -1);
}

TEST(ExportedGuards, AreArithmeticAsPythonHasIt) {
  using tower::exported::Guard;
  const auto holds = [](const std::string& text, int64_t x, int64_t n) {
    const auto found = Guard(text, {"x", "options.n", "pair[0]", "args_1"}).holds([&](size_t leaf, auto dim) {
      return leaf == 1 && !dim ? std::optional(n) : dim == 1 ? std::optional(x) : std::nullopt;
    });
    return found ? *found ? "yes" : "no" : "unknown";
  };
  const std::string X = "L['x'].size()[1]", N = "L['options']['n']";
  EXPECT_EQ(holds("(" + X + " % 2) == 0", 6, 0), "yes"s);
  EXPECT_EQ(holds("(" + X + " % 2) == 0", 7, 0), "no"s);
  EXPECT_EQ(holds(N + " // 2 == -4", 0, -7), "yes"s);
  EXPECT_EQ(holds("((-1)*" + N + ") % 3 == 2", 0, 7), "yes"s);
  EXPECT_EQ(holds("1 + 2*" + X + " - 3 >= 2*2", 3, 0), "yes"s);
  EXPECT_EQ(holds(X + " < 3 or " + X + " > 5 and not " + N + " == 1", 6, 1), "no"s);
  EXPECT_EQ(holds(X + " < 3 or " + X + " > 5 and not " + N + " == 1", 2, 1), "yes"s);
  EXPECT_EQ(holds("max(" + X + ", 4, " + N + ") == abs(-9) and min(3, 2) <= 2", 9, 5), "yes"s);
  EXPECT_EQ(holds("L['pair'][0].size()[1] != L['args'][1].size()[1]", 4, 0), "no"s);
  EXPECT_EQ(holds(X + "*" + X + " > 0", 4000000000000, 0), "unknown"s);
  EXPECT_EQ(holds(X + " % " + N + " == 0", 4, 0), "unknown"s);
  EXPECT_EQ(holds(N + " == 0 or " + X + " % " + N + " == 0", 4, 0), "yes"s);
  EXPECT_EQ(holds("L['x'].size()[0] == 1", 1, 1), "unknown"s);
  // Values do not depend on strides, and tensors of transforms have others.
  EXPECT_EQ(holds("L['x'].stride()[0] == 5 and L['x'].storage_offset() == 7", 1, 1), "yes"s);
  EXPECT_EQ(Guard("(" + X + " % 2) == " + N, {"x", "options.n"}).text(), "(x.size()[1] % 2) == options.n");
}

TEST(ExportedGuards, ThatAreNoneAreRefused) {
  using tower::exported::Guard;
  for (const std::string text :
       {"", "1 +", "(1", "1)", "L['x'", "L['x'].size()[", "L['x'].shape[0] == 1", "__import__('os')", "1.5 == 1",
        "2 ** 3 == 8", "math.inf == 1", "max()", "abs(1, 2) == 1", "99999999999999999999 == 1", "not", "1 == 2 == 3"})
    EXPECT_THROW(Guard(text, {"x"}), tower::exported::NotSupported) << text;
  for (const std::string deep : {"(", "-", "not "}) {
    std::string text;
    for (int n = 0; n < 100000; ++n) text += deep;
    EXPECT_THROW(Guard(text, {"x"}), tower::exported::NotSupported);
  }
  std::string wide = "1";
  for (int n = 0; n < 100000; ++n) wide += " + 1";
  EXPECT_THROW(Guard(wide, {"x"}), tower::exported::NotSupported);
}

TEST(ExportedSizes, AreSolvedForASizeThatIsKnown) {
  using tower::exported::SizeExpression;
  const std::string s = "Symbol('s0', positive=True, integer=True)";
  const auto solved = [&](const std::string& text, int64_t size) {
    tower::exported::Symbols symbols;
    return SizeExpression::parse(text).solve(size, symbols) ? symbols.at("s0") : -1;
  };
  EXPECT_EQ(solved(s, 5), 5);
  EXPECT_EQ(solved("Add(Mul(Integer(2), " + s + "), Integer(-1))", 9), 5);
  EXPECT_EQ(solved("Add(Mul(Integer(2), " + s + "), Integer(-1))", 8), -1);
  EXPECT_EQ(solved("Mul(Rational(1, 2), " + s + ")", 4), 8);
  EXPECT_EQ(solved("Pow(" + s + ", Integer(2))", 9), -1);
  EXPECT_EQ(solved("Mul(" + s + ", Symbol('s1', integer=True))", 9), -1);
}

// As torch writes the size that interpolate(x, scale_factor=1.5) gives.
TEST(ExportedSizes, ThatAreRoundedAreTextOnly) {
  using tower::exported::SizeExpression;
  const auto size = SizeExpression::parse(
      "TruncToInt(Mul(Float('1.5', precision=53), ToFloat(Symbol('s53', positive=True, integer=True))))");
  EXPECT_EQ(size.text(), "TruncToInt(1.5*ToFloat(s53))");
  EXPECT_EQ(size.evaluate({{"s53", 16}}), std::nullopt);
  tower::exported::Symbols symbols;
  EXPECT_FALSE(size.solve(24, symbols));
}

TEST(ExportedSizes, ThatAreNoneAreRefused) {
  using tower::exported::SizeExpression;
  for (const std::string text : {"",
                                 "Integer",
                                 "Integer(",
                                 "Integer(x)",
                                 "Integer(1",
                                 "Integer(1))",
                                 "Add()",
                                 "Add(,)",
                                 "Symbol(s0)",
                                 "Symbol('s0",
                                 "Symbol('')",
                                 "Rational(1, 0)",
                                 "Rational(1, 2)",
                                 "Integer(99999999999999999999)",
                                 "Pow(Integer(1))",
                                 "1 + 1",
                                 "__import__('os')",
                                 "Float(1.5)",
                                 "Float('1.5'",
                                 "TruncToInt()"})
    EXPECT_THROW(SizeExpression::parse(text), std::runtime_error) << text;
  std::string deep;
  for (int n = 0; n < 100000; ++n) deep += "Add(";
  EXPECT_THROW(SizeExpression::parse(deep), tower::exported::FileError);
  EXPECT_THROW(SizeExpression::parse("eval(Integer(1))"), tower::exported::NotSupported);
}

}  // namespace
