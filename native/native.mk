# The native core by itself: `native` compiles it, `sanitize` runs its C++ tests.
#   make native                                     in the environment of the Makefile, which includes this file
#   make -f native/native.mk native PYTHON=python   in place, for PYTHONPATH=src, with a Python that has nanobind, cmake and ninja

PYTHON ?= python3
CXX ?= c++
NATIVE_BUILD := build/native
SANITIZE_BUILD := build/sanitize
SANITIZE_FLAGS := -std=c++17 -O1 -g -fno-omit-frame-pointer -pthread -Wall -Wextra -Inative -Itests/native

.PHONY: native sanitize

ifeq ($(origin CORE)-$(origin PYTHON),file-file)
native: $(CORE) ## compile the native core
else
native:
	@$(PYTHON) -m cmake -S . -B $(NATIVE_BUILD) -G Ninja -DPython_EXECUTABLE=$$(command -v $(PYTHON)) \
	    -DCMAKE_MAKE_PROGRAM=$$($(PYTHON) -c 'import ninja; print(ninja.BIN_DIR)')/ninja > /dev/null
	@$(PYTHON) -m cmake --build $(NATIVE_BUILD)
	@$(PYTHON) -m cmake --install $(NATIVE_BUILD) --prefix src > /dev/null
endif

sanitize: $(SANITIZE_BUILD)/thread $(SANITIZE_BUILD)/address ## run the native core's tests under TSan, ASan and UBSan
	@echo "== ThreadSanitizer"; TSAN_OPTIONS=halt_on_error=1 timeout 120 $(SANITIZE_BUILD)/thread
	@echo "== AddressSanitizer and UndefinedBehaviorSanitizer"; timeout 120 $(SANITIZE_BUILD)/address

$(SANITIZE_BUILD)/thread: SANITIZERS := -fsanitize=thread
$(SANITIZE_BUILD)/address: SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all

$(SANITIZE_BUILD)/%: tests/native/test_core.cpp $(wildcard tests/native/*.hpp native/*.hpp)
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE_FLAGS) $(SANITIZERS) $< -o $@
