package gguf_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// zipped is an archive with one file.
func zipped(t *testing.T, name string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	f, err := w.Create(name)
	require.NoError(t, err)
	_, err = f.Write(bytes.Repeat([]byte("weights"), 100))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func gzipped(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(everything(t))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func tarred(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "model.gguf", Mode: 0o644, Size: 3}))
	_, err := w.Write([]byte("abc"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func safetensors() []byte {
	const header = `{"lm_head.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), make([]byte, 8)...)
}

func TestAFileThatIsNoModelIsNamedForWhatItIs(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4920739232\n"
	for name, tc := range map[string]struct {
		data []byte
		want []string
	}{
		"a Git LFS pointer":         {[]byte(pointer), []string{"Git LFS pointer", "4920739232 bytes", "git lfs pull"}},
		"a pointer without a size":  {[]byte("version https://git-lfs.github.com/spec/v1\n"), []string{"pointer in place of the model: run git lfs pull"}},
		"a web page":                {[]byte("\n  <!DOCTYPE html><html><title>Sign in</title></html>"), []string{"web page", "download the model again"}},
		"a page after a BOM":        {[]byte("\ufeff<html><body>404</body></html>"), []string{"web page"}},
		"an error in XML":           {[]byte(`<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>`), []string{"web page"}},
		"an error in JSON":          {[]byte(`{"error":"Repository not found"}`), []string{"JSON", "Repository not found", "download the model again"}},
		"a line of text":            {[]byte("Entry not found\n"), []string{"text", "Entry not found"}},
		"much text":                 {[]byte(strings.Repeat("é", 5000)), []string{"is text"}},
		"a zip archive":             {zipped(t, "model.gguf"), []string{"zip archive", "unpack"}},
		"a PyTorch checkpoint":      {zipped(t, "archive/data.pkl"), []string{"PyTorch checkpoint", "convert"}},
		"a pickle":                  {[]byte("\x80\x02}q\x00(X\x05\x00\x00\x00modelq\x01"), []string{"pickle", "convert"}},
		"safetensors":               {safetensors(), []string{"safetensors", "convert"}},
		"a model packed with gzip":  {gzipped(t), []string{"gzip", "unpack"}},
		"a tar archive":             {tarred(t), []string{"tar archive", "unpack"}},
		"a GGML file":               {append([]byte("tjgg\x03\x00\x00\x00"), make([]byte, 100)...), []string{"GGML", "as GGUF"}},
		"an unfinished download":    {make([]byte, 8192), []string{"begins with zeros", "download or copy it again"}},
		"bytes of no meaning":       {[]byte("\x01\x02\xfe\xff\x00abc"), []string{`magic is "\x01\x02\xfe\xff", want "GGUF"`}},
		"a file cut in its header":  {everything(t)[:600], []string{"cut short", "download or copy it again"}},
		"a file cut at its counts":  {everything(t)[:100], []string{"do not fit into the file", "download or copy it again"}},
		"a file cut in its tensors": {everything(t)[:len(everything(t))-100], []string{"truncated: tensor", "the file ends at", " of ", "download or copy it again"}},
		"the first version":         {append([]byte("GGUF\x01\x00\x00\x00"), make([]byte, 64)...), []string{"version 1 of GGUF", "newer file"}},
		"another byte order":        {append([]byte("GGUF\x00\x00\x00\x03"), make([]byte, 64)...), []string{"big-endian", "little-endian"}},
		"nothing":                   {nil, []string{"the file is empty", "download or copy it again"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "stranger.gguf")
			require.NoError(t, os.WriteFile(path, tc.data, 0o644))
			_, err := gguf.Open(path)
			var where *gguf.FormatError
			require.ErrorAs(t, err, &where)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
			require.Less(t, len(err.Error()), 400)
		})
	}
}

func TestAPrefixOfAnythingIsDescribedWithoutFault(t *testing.T) {
	for _, whole := range [][]byte{safetensors(), zipped(t, "data.pkl"), tarred(t), []byte("version https://git-lfs.github.com/spec/v1\nsize x\n"), []byte(strings.Repeat("日本", 2000))} {
		for n := 1; n <= min(len(whole), 4200); n++ {
			_, err := gguf.Parse(whole[:n])
			require.ErrorIs(t, err, gguf.ErrFormat)
		}
	}
}
