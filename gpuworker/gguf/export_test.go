package gguf

import "fmt"

// Alignment returns the bytes that tensors are aligned to.
func (f *File) Alignment() uint64 { return f.alignment }

// ParseParts joins files in memory as OpenParts joins files. Part i has the name "part<i>".
func ParseParts(data ...[]byte) (*File, error) {
	var parts []source
	var names []string
	for i, d := range data {
		parts, names = append(parts, inMemory(d)), append(names, fmt.Sprintf("part%d", i))
	}
	return join(parts, names)
}
