package cpu

// The path of instructions is chosen at run time: kernels carry their own targets, and flags stay those of the oldest
// processor. Nothing may be contracted into a fused multiply-add unasked; the sources say so, since cgo refuses the flag.

/*
#cgo CXXFLAGS: -std=c++17 -O3 -g1 -I${SRCDIR}/../include -Wall -Wextra -Wno-psabi
#cgo CFLAGS: -I${SRCDIR}/../include
#cgo LDFLAGS: -lpthread -static-libstdc++ -static-libgcc
#include <stdlib.h>
#include "millrace/engine.h"
void mr_cpu_name_sources(const char *digest);
*/
import "C"

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"sync"
	"unsafe"
)

// The sources this package is built from: their digest names the engine's build.
//
//go:embed cpu.go *.cpp *.h *.inl
var sources embed.FS

// Table returns the engine's mr_api. It is valid for the life of the process and may be used from any thread.
func Table() unsafe.Pointer { return table() }

var table = sync.OnceValue(func() unsafe.Pointer {
	digest := C.CString(sourceDigest())
	defer C.free(unsafe.Pointer(digest))
	C.mr_cpu_name_sources(digest)
	return unsafe.Pointer(C.mr_engine_api(C.MR_ABI_MAJOR, nil))
})

// sourceDigest hashes names and contents in the order of the names. Its 16 hexadecimal digits
// identify a build.
func sourceDigest() string {
	hash := sha256.New()
	names, err := fs.Glob(sources, "*") // sorted
	if err != nil {
		panic("cpu: the pattern of embedded sources is malformed: " + err.Error())
	}
	for _, name := range names {
		content, err := sources.ReadFile(name)
		if err != nil {
			panic("cpu: an embedded source cannot be read: " + err.Error())
		}
		file := sha256.Sum256(content)
		hash.Write([]byte(name))
		hash.Write([]byte{0})
		hash.Write(file[:])
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}
