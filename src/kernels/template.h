// LLVM's IR from templates that look like what they make:
//
//   filled(R"(
//     %first~ = insertelement {V} poison, {T} {one}, i32 0
//     {result} = shufflevector {V} %first~, {V} poison, {S} zeroinitializer
//   )", {{"one", "%x3"}, {"result", "%all"}}, …)
//
// A hole is a name in braces; braces around anything else are the text's own. A name that ends in ~ is the template's
// own: each time that the template is filled, it is another one.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "numbers/expression.h"

namespace tower::compiler {

using Holes = std::vector<std::pair<std::string_view, std::string>>;

/// LLVM's names of a type: of one lane's value, and as it lies in memory, where a boolean is a byte.
const char* scalar(Type type);
const char* in_memory(Type type);
/// A type as it stands in the names of LLVM's intrinsics.
const char* mangled(Type type);
std::string vector_of(const char* element, int64_t lanes);
std::string vector_of(Type type, int64_t lanes);

/// What is spelled for vectors of `lanes` values of a type: {L} the lanes' number, {T} a value, {V} a vector of them,
/// {M} that as intrinsics' names have it ("v8f64"), {memory} a vector in memory, {B}, {I}, {S} vectors of booleans, of
/// 64-bit and of 32-bit integers.
Holes holes_of(Type type, int64_t lanes);

/// Numbers of 64 bits that lie one behind the other at %numbers, by their names.
std::string loads_of(c10::ArrayRef<const char*> names);

/// The template's text, which begins with its second line. `own` is what ~ becomes. A hole for which there is nothing
/// is an internal error.
std::string filled(std::string_view text, const Holes& holes, const Holes& more = {}, const std::string& own = {});

}  // namespace tower::compiler
