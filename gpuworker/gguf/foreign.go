package gguf

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// again is the advice for a file with missing bytes.
const again = "download or copy it again"

// sniffed bounds how much of a foreign file is inspected.
const sniffed = 4 << 10

// signature recognises a kind of file by the bytes at an offset.
type signature struct {
	offset int
	magic  string
	is     string
}

const (
	unpackFirst = "unpack it and put the model inside here"
	convertIt   = "convert it to GGUF with llama.cpp's convert_hf_to_gguf.py, or download the model as GGUF"
	oldGGML     = "a GGML file of the time before GGUF: download the model as GGUF"
)

var signatures = []signature{
	{0, "lmgg", oldGGML}, {0, "fmgg", oldGGML}, {0, "tjgg", oldGGML}, {0, "algg", oldGGML},
	{0, "\x80\x02", "a Python pickle, such as an old PyTorch checkpoint: " + convertIt},
	{0, "\x80\x03", "a Python pickle, such as an old PyTorch checkpoint: " + convertIt},
	{0, "\x80\x04", "a Python pickle, such as an old PyTorch checkpoint: " + convertIt},
	{0, "\x80\x05", "a Python pickle, such as an old PyTorch checkpoint: " + convertIt},
	{0, "\x89HDF\r\n\x1a\n", "an HDF5 file, such as a Keras model: " + convertIt},
	{0, "\x93NUMPY", "a NumPy array: " + convertIt},
	{4, "TFL3", "a TensorFlow Lite model: " + convertIt},
	{0, "\x1f\x8b", "compressed with gzip: " + unpackFirst},
	{0, "BZh", "compressed with bzip2: " + unpackFirst},
	{0, "\x28\xb5\x2f\xfd", "compressed with zstd: " + unpackFirst},
	{0, "\xfd7zXZ\x00", "compressed with xz: " + unpackFirst},
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive: " + unpackFirst},
	{0, "Rar!\x1a\x07", "a RAR archive: " + unpackFirst},
	{257, "ustar", "a tar archive: " + unpackFirst},
}

// foreign explains which kind of file a non-GGUF file is, and what to do about it.
func foreign(s string) string {
	head := strings.Clone(s[:min(len(s), sniffed)])
	for _, sig := range signatures {
		if len(head) >= sig.offset && strings.HasPrefix(head[sig.offset:], sig.magic) {
			return "the file is " + sig.is
		}
	}
	switch {
	case strings.HasPrefix(head, "version https://git-lfs.github.com/spec/"):
		return pointer(head)
	case strings.HasPrefix(head, "PK\x03\x04"):
		if strings.Contains(head, "data.pkl") {
			return "the file is a PyTorch checkpoint: " + convertIt
		}
		return "the file is a zip archive: " + unpackFirst
	case safetensors(head, uint64(len(s))):
		return "the file is in the safetensors format: " + convertIt
	case strings.Trim(head, "\x00") == "":
		return "the file begins with zeros, as an unfinished download does that reserved its space: " + again
	case isText(head):
		return text(head)
	}
	return fmt.Sprintf("magic is %q, want %q: the file is not a GGUF model, in spite of its name", head[:4], magic)
}

// pointer describes a Git LFS pointer, which contains the size of the real file.
func pointer(head string) string {
	size := ""
	for line := range strings.Lines(head) {
		if n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(line, "size ")), 10, 64); err == nil {
			size = fmt.Sprintf(" (%d bytes)", n)
		}
	}
	return "the file is a Git LFS pointer in place of the model" + size +
		": run git lfs pull where it was cloned and copy the model from there, or download the model itself"
}

// safetensors reports whether a file of this size starts with the length of a JSON header and that
// header.
func safetensors(head string, size uint64) bool {
	if len(head) < 10 || head[8:10] != `{"` {
		return false
	}
	n := binary.LittleEndian.Uint64([]byte(head[:8]))
	return n >= 2 && n <= size-8
}

// text describes a file that is text: usually a server's error page instead of the model.
func text(head string) string {
	start := strings.TrimLeftFunc(strings.TrimPrefix(head, "\ufeff"), unicode.IsSpace)
	lower := strings.ToLower(start[:min(len(start), 16)])
	const direct = "download the model again, by its direct link and logged in if that is needed"
	for _, tag := range []string{"<!doctype", "<html", "<head", "<?xml", "<!--"} {
		if strings.HasPrefix(lower, tag) {
			return "the file is a web page, which a server sends in place of a model that it refuses: " + direct
		}
	}
	if strings.HasPrefix(start, "{") || strings.HasPrefix(start, "[") {
		return fmt.Sprintf("the file is JSON (%.48q), as a server sends it with an error: %s", start, direct)
	}
	return fmt.Sprintf("the file is text (%.48q) and no model: %s", start, direct)
}

// isText reports whether head is readable text. A character that is cut at its end is ignored.
func isText(head string) bool {
	for i := 0; i < len(head); {
		r, n := utf8.DecodeRuneInString(head[i:])
		if r == utf8.RuneError && n <= 1 {
			return len(head) == sniffed && len(head)-i < utf8.UTFMax && i > 0
		}
		if r < ' ' && !strings.ContainsRune("\t\n\f\r", r) {
			return false
		}
		i += n
	}
	return true
}
