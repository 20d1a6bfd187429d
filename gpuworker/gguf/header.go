package gguf

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	magic            = "GGUF"
	alignmentKey     = "general.alignment"
	defaultAlignment = 32
	minAlignment     = 8
	maxAlignment     = 1 << 20
	maxHeader        = 64 << 20  // bytes before tensor data; large vocabularies take 20 MiB
	maxPairs         = 1 << 16   // real files have about 40
	maxTensors       = 1 << 17   // real files have up to a few thousand
	maxKey           = 1<<16 - 1 // bytes
	maxTensorName    = 64        // bytes
	maxFile          = 1 << 50   // bytes
	minPair          = 8 + 4 + 1
	minTensorInfo    = 8 + 4 + 8 + 4 + 8
)

// header is the part before the tensor data.
type header struct {
	version   uint32
	alignment uint64
	meta      Metadata
	tensors   []Tensor
	byName    map[string]int
	end       uint64 // offset after the last tensor info
	data      uint64 // offset of the tensor data, aligned
}

// info is a tensor info with the offsets of its fields, kept while the header is checked.
type info struct {
	offset, typeAt, offsetAt uint64
	relative                 uint64
}

// walk reads the header at the start of s, which is the file or a copy of its header, and calls
// keep for every pair and every tensor info. It checks structure only. With a nil keep it allocates
// nothing.
func walk(s string, keep *builder) (version uint32, end uint64, err error) {
	c := &cursor{s: s}
	version, tensors, pairs, err := c.prologue()
	if err != nil {
		return 0, 0, err
	}
	for range pairs {
		if err := c.pair(keep); err != nil {
			return 0, 0, err
		}
		if c.pos > maxHeader {
			return 0, 0, malformed(c.pos, "metadata is larger than %d bytes", uint64(maxHeader))
		}
	}
	for range tensors {
		if err := c.tensorInfo(keep); err != nil {
			return 0, 0, err
		}
		if c.pos > maxHeader {
			return 0, 0, malformed(c.pos, "header is larger than %d bytes", uint64(maxHeader))
		}
	}
	return version, c.pos, nil
}

const bigEndian = "the file is in big-endian byte order: download the usual little-endian one, or convert it with " +
	"llama.cpp's gguf_convert_endian.py"

// prologue reads magic, version and counts.
func (c *cursor) prologue() (version uint32, tensors, pairs uint64, err error) {
	m, err := c.next(4, "magic")
	switch {
	case err != nil:
		return 0, 0, 0, err
	case m == "FUGG":
		return 0, 0, 0, unsupported(0, bigEndian)
	case m != magic:
		return 0, 0, 0, malformed(0, "%s", foreign(c.s))
	}
	if version, err = c.u32("version"); err != nil {
		return 0, 0, 0, err
	}
	switch {
	case version&0xffff == 0 && version != 0:
		return 0, 0, 0, unsupported(4, bigEndian)
	case version == 1:
		return 0, 0, 0, unsupported(4, "version 1 of GGUF, which the first weeks of the format wrote; want 2 or 3: "+
			"download a newer file of the model")
	case version != 2 && version != 3:
		return 0, 0, 0, unsupported(4, "version %d of GGUF, want 2 or 3", version)
	}
	if tensors, err = c.u64("tensor count"); err != nil {
		return 0, 0, 0, err
	}
	if pairs, err = c.u64("metadata count"); err != nil {
		return 0, 0, 0, err
	}
	left := uint64(len(c.s)) - c.pos
	switch {
	case tensors > left/minTensorInfo:
		return 0, 0, 0, malformed(8, "%d tensors do not fit into the file, it is cut short or damaged: %s", tensors, again)
	case pairs > left/minPair:
		return 0, 0, 0, malformed(16, "%d metadata pairs do not fit into the file, it is cut short or damaged: %s", pairs, again)
	case tensors > maxTensors:
		return 0, 0, 0, malformed(8, "%d tensors, want at most %d", tensors, maxTensors)
	case pairs > maxPairs:
		return 0, 0, 0, malformed(16, "%d metadata pairs, want at most %d", pairs, maxPairs)
	}
	return version, tensors, pairs, nil
}

func (c *cursor) pair(keep *builder) error {
	offset := c.pos
	key, err := c.str("metadata key")
	if err != nil {
		return err
	}
	typeAt := c.pos
	t, err := c.u32("metadata type")
	if err != nil {
		return err
	}
	start := c.pos
	v, err := c.value(ValueType(t), typeAt)
	if err != nil || keep == nil {
		return err
	}
	return keep.pair(offset, key, entry{v, c.s[start:c.pos]})
}

func (c *cursor) tensorInfo(keep *builder) error {
	f := info{offset: c.pos}
	name, err := c.str("tensor name")
	if err != nil {
		return err
	}
	dimsAt := c.pos
	n, err := c.u32("dimension count")
	if err != nil {
		return err
	}
	if n == 0 || n > maxDims {
		return malformed(dimsAt, "tensor %q has %d dimensions, want 1 to %d", name, n, maxDims)
	}
	var dims [maxDims]uint64
	for i := range n {
		if dims[i], err = c.u64("dimension"); err != nil {
			return err
		}
	}
	f.typeAt = c.pos
	t, err := c.u32("tensor type")
	if err != nil {
		return err
	}
	f.offsetAt = c.pos
	if f.relative, err = c.u64("tensor offset"); err != nil || keep == nil {
		return err
	}
	return keep.tensor(f, dimsAt, name, Type(t), dims[:n])
}

// builder collects what walk finds and checks its meaning.
type builder struct {
	header
	infos []info
}

func (b *builder) pair(offset uint64, key string, e entry) error {
	switch {
	case key == "":
		return malformed(offset, "metadata key is empty")
	case len(key) > maxKey:
		return malformed(offset, "metadata key has %d bytes, want at most %d", len(key), maxKey)
	case !utf8.ValidString(key):
		return malformed(offset, "metadata key %.64q is not UTF-8", key)
	}
	if _, dup := b.meta.values[key]; dup {
		return malformed(offset, "metadata key %.64q appears twice", key)
	}
	if key == alignmentKey {
		a, ok := uintOf(e.value.Type, e.value.raw)
		if !ok || a < minAlignment || a > maxAlignment || bits.OnesCount64(a) != 1 {
			return malformed(offset, "metadata %s is %s, want a power of two from %d to %d: the tool that wrote the file is at fault, "+
				"get the model from elsewhere", alignmentKey, e.value.shown(), minAlignment, maxAlignment)
		}
		b.alignment = a
	}
	b.meta.keys = append(b.meta.keys, key)
	b.meta.values[key] = e
	return nil
}

func (b *builder) tensor(f info, dimsAt uint64, name string, t Type, dims []uint64) error {
	switch {
	case name == "":
		return malformed(f.offset, "tensor name is empty")
	case len(name) > maxTensorName:
		return malformed(f.offset, "tensor name has %d bytes, want at most %d", len(name), maxTensorName)
	case !utf8.ValidString(name):
		return malformed(f.offset, "tensor name %q is not UTF-8", name)
	case !t.Known():
		return unsupported(f.typeAt, "tensor %q has %s", name, unknownType(t))
	}
	if _, dup := b.byName[name]; dup {
		return malformed(f.offset, "tensor name %q appears twice", name)
	}
	size, err := tensorSize(t, dims)
	if err != nil {
		return malformed(dimsAt, "tensor %q: %v", name, err)
	}
	b.byName[name] = len(b.tensors)
	b.tensors = append(b.tensors, Tensor{Name: name, Type: t, Dims: slices.Clone(dims), Size: size})
	b.infos = append(b.infos, f)
	return nil
}

// wanted states how large the file must be for all its tensors, or "" if the size is absurd.
func (b *builder) wanted() string {
	var end uint64
	for i, t := range b.tensors {
		rel := b.infos[i].relative
		if rel > maxFile || t.Size > maxFile {
			return ""
		}
		end = max(end, b.data+rel+t.Size)
	}
	return fmt.Sprintf(" of %d", end)
}

// place turns relative offsets into offsets in a file of the given size, and refuses tensors that
// are misaligned, reach beyond the file, or overlap.
func (b *builder) place(fileSize uint64) error {
	b.data = alignUp(b.end, b.alignment)
	order := make([]int, len(b.tensors))
	for i := range b.tensors {
		t, f := &b.tensors[i], b.infos[i]
		order[i] = i
		if f.relative%b.alignment != 0 {
			return malformed(f.offsetAt, "tensor %q at data offset %d is not aligned to %d", t.Name, f.relative, b.alignment)
		}
		if b.data > fileSize || f.relative > fileSize-b.data || t.Size > fileSize-b.data-f.relative {
			return malformed(f.offsetAt, "truncated: tensor %q needs %d bytes at data offset %d and the file ends at %d%s: %s",
				t.Name, t.Size, f.relative, fileSize, b.wanted(), again)
		}
		t.Offset = b.data + f.relative
	}
	slices.SortFunc(order, func(x, y int) int {
		if b.tensors[x].Offset < b.tensors[y].Offset {
			return -1
		}
		return 1
	})
	for i := 1; i < len(order); i++ {
		p, t := b.tensors[order[i-1]], b.tensors[order[i]]
		if p.Offset+p.Size > t.Offset {
			return malformed(b.infos[order[i]].offsetAt, "tensor %q overlaps tensor %q", t.Name, p.Name)
		}
	}
	return nil
}

func alignUp(n, alignment uint64) uint64 { return (n + alignment - 1) &^ (alignment - 1) }

// parse reads the header of a file, of which s is a view. It copies the header before it checks its
// meaning, so that a concurrent write to the file cannot change what was checked.
func parse(s string) (*header, error) {
	_, end, err := walk(s, nil)
	if err != nil {
		return nil, err
	}
	b := &builder{header: header{alignment: defaultAlignment, byName: map[string]int{}}}
	b.meta.values = map[string]entry{}
	if b.version, b.end, err = walk(strings.Clone(s[:end]), b); err != nil {
		return nil, err
	}
	if err := b.place(uint64(len(s))); err != nil {
		return nil, err
	}
	return &b.header, nil
}
