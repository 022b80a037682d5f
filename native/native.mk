# The native core by itself: `native` builds it in place for work on the sources, `sanitize` runs its C++ tests under the sanitizers.

PYTHON ?= python3
NATIVE_BUILD := build/native

.PHONY: native

native: ## build the native core in place
	@$(PYTHON) -m cmake -S . -B $(NATIVE_BUILD) -G Ninja -DPython_EXECUTABLE=$$(command -v $(PYTHON)) \
	    -DCMAKE_MAKE_PROGRAM=$$($(PYTHON) -c 'import ninja; print(ninja.BIN_DIR)')/ninja > /dev/null
	@$(PYTHON) -m cmake --build $(NATIVE_BUILD)
	@$(PYTHON) -m cmake --install $(NATIVE_BUILD) --prefix src > /dev/null
