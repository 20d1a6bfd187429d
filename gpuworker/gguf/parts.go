package gguf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A split model is several files NAME-00001-of-00003.gguf to NAME-00003-of-00003.gguf in one folder.
// The first has the model's metadata and may have no tensors. Every part has the three keys below
// (llama.cpp's gguf-split writes them as uint16, uint16 and int32) and a header of its own, with
// offsets from its own start.
const (
	keySplitNo      = "split.no"            // number of the part, from 0
	keySplitCount   = "split.count"         // number of parts
	keySplitTensors = "split.tensors.count" // tensors of all parts
)

// isSplitKey reports whether a metadata key says how a model is divided into files.
func isSplitKey(key string) bool {
	return key == keySplitNo || key == keySplitCount || key == keySplitTensors
}

// MaxParts is the highest number of files of one model. The largest that are published have fewer
// than 100.
const MaxParts = 1000

// CheckPartCount returns an error if a model is split into more than MaxParts files.
func CheckPartCount(count int) error {
	if count <= MaxParts {
		return nil
	}
	return fmt.Errorf("%w: the model is split into %d files, want at most %d: merge them with llama.cpp's llama-gguf-split --merge",
		ErrUnsupported, count, MaxParts)
}

var partNames = regexp.MustCompile(`^(.+)-([0-9]{5})-of-([0-9]{5})\.gguf$`)

// ParsePartName reads the file name of a part of a split model: number is from 1 to count, which is
// at least 2. ok is false for any other name.
func ParsePartName(file string) (prefix string, number, count int, ok bool) {
	m := partNames.FindStringSubmatch(file)
	if m == nil {
		return "", 0, 0, false
	}
	number, _ = strconv.Atoi(m[2]) // five digits
	count, _ = strconv.Atoi(m[3])
	if count < 2 || number < 1 || number > count {
		return "", 0, 0, false
	}
	return m[1], number, count, true
}

// PartName is the inverse of ParsePartName.
func PartName(prefix string, number, count int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, number, count)
}

// OpenParts opens a split model, whose files are in the order of their numbers. It owns the files,
// even if it fails. Its errors name the part and its file, without the folder.
func OpenParts(fds []*os.File) (*File, error) {
	if err := CheckPartCount(len(fds)); err != nil {
		return nil, errors.Join(err, closeFiles(fds))
	}
	var parts []source
	var names []string
	for i, fd := range fds {
		names = append(names, filepath.Base(fd.Name()))
		src, err := mapFile(fd)
		if err != nil {
			return nil, errors.Join(partError(i, len(fds), names[i], err), closeSources(parts), closeFiles(fds[i+1:]))
		}
		parts = append(parts, src)
	}
	f, err := join(parts, names)
	if err != nil {
		return nil, errors.Join(err, closeSources(parts))
	}
	return f, nil
}

func closeSources(parts []source) (err error) {
	for _, p := range parts {
		err = errors.Join(err, p.close())
	}
	return err
}

func partError(index, count int, name string, err error) error {
	return fmt.Errorf("part %d of %d, file %q: %w", index+1, count, name, err)
}

// join makes one File of the parts of a model.
func join(parts []source, names []string) (*File, error) {
	f := &File{}
	for i, p := range parts {
		h, err := p.header()
		if err == nil {
			err = f.add(h, i, len(parts))
		}
		if err != nil {
			return nil, partError(i, len(parts), names[i], err)
		}
		f.size += p.size()
	}
	if want, _, _ := f.meta.Uint(keySplitTensors); want != uint64(len(f.tensors)) { // checked by add
		return nil, fmt.Errorf("%w: the %d parts have %d tensors, and metadata %s is %d: a part is not of this model, or was written "+
			"by a broken tool: download all parts again", ErrFormat, len(parts), len(f.tensors), keySplitTensors, want)
	}
	f.meta.remove(isSplitKey)
	f.mu.parts = parts
	return f, nil
}

// add appends the tensors of the part at index, whose header is h, after it has checked that the
// part belongs to the model.
func (f *File) add(h *header, index, count int) error {
	if err := f.checkSplit(h, index, count); err != nil {
		return err
	}
	if index == 0 {
		f.header = *h
		return nil
	}
	if err := f.checkMetadata(h); err != nil {
		return err
	}
	if n := len(f.tensors) + len(h.tensors); n > maxTensors {
		return fmt.Errorf("%w: the parts so far have %d tensors, want at most %d", ErrFormat, n, maxTensors)
	}
	for _, t := range h.tensors {
		if first, dup := f.byName[t.Name]; dup {
			return fmt.Errorf("%w: tensor %q is in part %d, too: the parts are of different models or divisions: download them again",
				ErrFormat, t.Name, f.tensors[first].Part+1)
		}
		t.Name, t.Part = strings.Clone(t.Name), index // the part's header is not kept
		f.byName[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	return nil
}

// checkSplit compares a part's own statement with its name and with the first part.
func (f *File) checkSplit(h *header, index, count int) error {
	for _, check := range []struct {
		key  string
		want uint64
	}{{keySplitCount, uint64(count)}, {keySplitNo, uint64(index)}} {
		got, ok, err := h.meta.Uint(check.key)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrFormat, err)
		case !ok:
			return fmt.Errorf("%w: the file's name is that of a part and metadata %s is missing: if it is a whole model, rename it; "+
				"else download it again", ErrFormat, check.key)
		case got != check.want:
			return fmt.Errorf("%w: metadata %s is %d and the file's name says %d: the file was renamed, or is of another division: "+
				"download all parts again and keep their names", ErrFormat, check.key, got, check.want)
		}
	}
	got, ok, err := h.meta.Uint(keySplitTensors)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrFormat, err)
	case index == 0 && !ok:
		return fmt.Errorf("%w: metadata %s is missing: the tool that wrote the part is at fault, get the model from elsewhere",
			ErrFormat, keySplitTensors)
	case index > 0 && ok:
		if want, _, _ := f.meta.Uint(keySplitTensors); got != want { // checked when it was the part
			return fmt.Errorf("%w: metadata %s is %d, in part 1 it is %d: the parts are of different models or divisions: "+
				"download them again", ErrFormat, keySplitTensors, got, want)
		}
	}
	return nil
}

// checkMetadata compares what a later part states about the model with the first part. Most later
// parts state nothing. A statement that only a later part has would be ignored, so it is refused.
func (f *File) checkMetadata(h *header) error {
	for _, key := range h.meta.keys {
		if isSplitKey(key) || key == alignmentKey { // of the part, not of the model
			continue
		}
		got := h.meta.values[key]
		want, ok := f.meta.values[key]
		if !ok || got.value.Type != want.value.Type || got.encoded != want.encoded {
			first := "has no such key"
			if ok {
				first = "has " + described(want.value)
			}
			return fmt.Errorf("%w: metadata %.64s is %s, and part 1 %s: the parts are of different models: download them again",
				ErrFormat, key, described(got.value), first)
		}
	}
	return nil
}

// described is shown, with the beginning of a text.
func described(v Value) string {
	if v.Type == String {
		return fmt.Sprintf("%.32q", v.raw)
	}
	return v.shown()
}

// remove drops the pairs whose keys unwanted accepts.
func (m *Metadata) remove(unwanted func(key string) bool) {
	for _, key := range m.keys {
		if unwanted(key) {
			delete(m.values, key)
		}
	}
	m.keys = slices.DeleteFunc(m.keys, unwanted)
}
