package native

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "table.h"

typedef const mr_api *(*mrt_entry)(uint32_t, uint32_t *);

static void *mrt_dlopen(const char *path, const char **why) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  *why = handle ? NULL : dlerror();
  return handle;
}

// found is 0 when the library has no entry point.
static const mr_api *mrt_dltable(void *handle, uint32_t major, uint32_t *supported, int *found) {
  mrt_entry entry = (mrt_entry)dlsym(handle, "mr_engine_api");
  *found = entry != NULL;
  return entry ? entry(major, supported) : NULL;
}
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/millrace/millrace/cuda"
	"github.com/millrace/millrace/gpuworker/engine"
)

// libraryName is the file name of the CUDA engine.
const libraryName = "libmillrace_cuda.so"

// places returns the files where a library may be, in order of precedence: the search path, whose
// entries are files or folders separated by colons, the binary's folder, and the folders lib and
// cuda next to it. `make cuda` leaves the library of a binary in build/bin in the latter.
func places(searchPath, binary string) []string {
	var out []string
	for _, entry := range filepath.SplitList(searchPath) {
		if entry == "" {
			continue
		}
		if st, err := os.Stat(entry); err == nil && !st.IsDir() {
			out = append(out, entry)
			continue
		}
		out = append(out, filepath.Join(entry, libraryName))
	}
	if binary != "" {
		dir := filepath.Dir(binary)
		out = append(out, filepath.Join(dir, libraryName), filepath.Join(dir, "..", "lib", libraryName),
			filepath.Join(dir, "..", "cuda", libraryName))
	}
	return out
}

// library opens the first file that exists. If it cannot be used, library returns an error, because
// a later file would hide the problem. It refuses an engine of other sources than this program's,
// unless anyBuild is true.
func library(places []string, anyBuild bool) (*table, error) {
	for _, path := range places {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		t, err := openLibrary(path)
		if err == nil && !anyBuild {
			err = sameSources(t)
		}
		if err != nil {
			return nil, err
		}
		return t, nil
	}
	return nil, fmt.Errorf("no CUDA engine: looked for %s: build it with `make cuda`, or give its path with --engine-path: %w",
		strings.Join(places, ", "), engine.ErrNoDevice)
}

// sameSources refuses an engine that was built from other sources than this program: it may compute
// other bits, and lack fixes.
func sameSources(t *table) error {
	const mark = "sources "
	want, has := cuda.Sources(), "unknown"
	if i := strings.LastIndex(t.build, mark); i >= 0 {
		has = t.build[i+len(mark):]
	}
	if has == want {
		return nil
	}
	return fmt.Errorf("engine %s is built from sources %s and this program from %s: build it again with `make cuda`, or take it "+
		"as it is with --engine-any-build: %w", t.from, has, want, engine.ErrNoDevice)
}

// openLibrary opens one library. It stays open until the process ends, because the engine's threads
// may outlive a device.
func openLibrary(path string) (*table, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", path, err)
	}
	cpath := cString(abs) // it has a slash, so dlopen searches no other folder
	defer cFree(unsafe.Pointer(cpath))
	var why *C.char
	handle := C.mrt_dlopen(cpath, &why)
	if handle == nil {
		return nil, fmt.Errorf("engine %s cannot be opened: %s: %w", abs, C.GoString(why), engine.ErrNoDevice)
	}
	var supported C.uint32_t
	var found C.int
	api := C.mrt_dltable(handle, C.uint32_t(abiMajor), &supported, &found)
	switch {
	case found == 0:
		err = fmt.Errorf("engine %s has no mr_engine_api: not a Millrace engine: %w", abs, engine.ErrNoDevice)
	case api == nil:
		err = versionError(abs, uint32(supported))
	default:
		var t *table
		if t, err = newTable(api, abs); err == nil {
			return t, nil
		}
	}
	C.dlclose(handle)
	return nil, err
}
