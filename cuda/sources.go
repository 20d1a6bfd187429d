package cuda

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"
)

// sources holds the files that the CUDA engine is built from, as sources.cmake lists them.
//
//go:embed CMakeLists.txt include src kernels cpu/*.h
//go:embed cpu/error.cpp cpu/shape.cpp cpu/weights.cpp cpu/slot.cpp cpu/step_plan.cpp cpu/runner_config.cpp
//go:embed cpu/vector_config.cpp cpu/vector_math.cpp cpu/slices.cpp
//go:embed cpu/linear_size.cpp cpu/isa.cpp cpu/blake3.cpp cpu/blake3_x86.cpp
var sources embed.FS

// extensions lists the files that are compiled or control how: .in is a template from which CMake
// writes a source.
var extensions = []string{".h", ".cuh", ".cpp", ".cu", ".in", ".map", ".txt"}

// Sources returns the digest of the CUDA sources in the tree that this program was built from, as
// 16 hexadecimal digits. A CUDA engine built from the same sources carries the same digest in its
// build text.
var Sources = sync.OnceValue(func() string {
	digest, err := digestOf(sources)
	if err != nil {
		panic("cuda: an embedded source cannot be read: " + err.Error())
	}
	return digest
})

// digestOf hashes one line "PATH SHA256" for each source, sorted by the bytes of the path.
func digestOf(tree fs.FS) (string, error) {
	var names []string
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && slices.Contains(extensions, path.Ext(name)) {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	slices.Sort(names)
	all := sha256.New()
	for _, name := range names {
		content, err := fs.ReadFile(tree, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(all, "%s %x\n", name, sha256.Sum256(content))
	}
	return hex.EncodeToString(all.Sum(nil)[:8]), nil
}
