#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace reprise {

// An attribute that holds any Python object in the instance's dictionary, where Python's collector sees it, and that
// has a type in the stubs; None until it is set. The class needs nb::dynamic_attr.
template <typename Class>
void def_instance_attribute(Class& cls, const char* name, const std::string& type) {
  namespace nb = nanobind;
  const std::string getter = "def " + std::string(name) + "(self, /) -> " + type;
  const std::string setter = "def " + std::string(name) + "(self, value: " + type + ", /) -> None";
  cls.def_prop_rw(
      name,
      [name](nb::handle self) {
        const auto fields = nb::borrow<nb::dict>(self.attr("__dict__"));
        return fields.contains(name) ? nb::object(fields[name]) : nb::none();
      },
      [name](nb::handle self, nb::handle value) { self.attr("__dict__")[name] = value; },
      nb::for_setter(nb::arg().none()), nb::for_getter(nb::sig(getter.c_str())),
      nb::for_setter(nb::sig(setter.c_str())));
}

}  // namespace reprise
