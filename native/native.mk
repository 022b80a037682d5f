# The native core by itself: `native` compiles it, `sanitize` runs its C++ tests, `portable` with other compilers.
#   make native                                     in the environment of the Makefile, which includes this file
#   make -f native/native.mk native PYTHON=python   in place, for PYTHONPATH=src, with a Python that has nanobind, cmake and ninja

PYTHON ?= python3
CXX ?= c++
CLANG ?= clang++
AARCH64_CXX ?= aarch64-linux-gnu-g++
AARCH64_RUN ?= qemu-aarch64-static
NATIVE_BUILD := build/native
SANITIZE_BUILD := build/sanitize
PORTABLE_BUILD := build/portable
CORE_TESTS := tests/support/native/test_core.cpp
CORE_SOURCES := $(CORE_TESTS) $(wildcard tests/support/native/*.hpp native/*.hpp)
CORE_FLAGS := -std=c++17 -O1 -g -pthread -Wall -Wextra -Werror=switch -Inative -Itests/support/native

.PHONY: native sanitize portable

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
	@echo "== ThreadSanitizer"; TSAN_OPTIONS=halt_on_error=1 timeout 300 $(SANITIZE_BUILD)/thread
	@echo "== AddressSanitizer and UndefinedBehaviorSanitizer"; timeout 300 $(SANITIZE_BUILD)/address

$(SANITIZE_BUILD)/thread: SANITIZERS := -fsanitize=thread
$(SANITIZE_BUILD)/address: SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all

$(SANITIZE_BUILD)/%: $(CORE_SOURCES)
	@mkdir -p $(@D)
	$(CXX) $(CORE_FLAGS) -fno-omit-frame-pointer $(SANITIZERS) $< -o $@

portable: $(PORTABLE_BUILD)/clang $(PORTABLE_BUILD)/aarch64 ## run them as clang compiles them, and for aarch64 under an emulator
	@echo "== clang"; timeout 300 $(PORTABLE_BUILD)/clang
	@echo "== aarch64"; timeout 600 $(AARCH64_RUN) $(PORTABLE_BUILD)/aarch64

$(PORTABLE_BUILD)/%: $(CORE_SOURCES)
	@for tool in $(CLANG) $(AARCH64_CXX) $(AARCH64_RUN); do command -v $$tool > /dev/null || \
	    { echo "$$tool is not here: apt-get install clang g++-aarch64-linux-gnu qemu-user-static"; exit 1; }; done
	@mkdir -p $(@D)
	$(COMPILER) $(CORE_FLAGS) -Werror $< -o $@

# A loop that clang may vectorize and cannot is no fault of the core.
$(PORTABLE_BUILD)/clang: COMPILER := $(CLANG) -Wno-pass-failed
$(PORTABLE_BUILD)/aarch64: COMPILER := $(AARCH64_CXX) -static
