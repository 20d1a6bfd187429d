package vectorfile_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/internal/vectorfile"
)

// holds checks what a reader guarantees for any bytes: a refusal with an offset inside the file, or
// rows that make up the file but for head bytes.
func holds(t *testing.T, m *vectorfile.Matrix, err error, data []byte, head func(*vectorfile.Matrix) int64) []byte {
	t.Helper()
	var where *vectorfile.FormatError
	if err != nil {
		require.ErrorAs(t, err, &where)
		require.GreaterOrEqual(t, where.Offset, int64(0))
		require.LessOrEqual(t, where.Offset, int64(len(data)))
		return nil
	}
	require.Positive(t, m.Dimension())
	require.LessOrEqual(t, m.Dimension(), vectorfile.MaxDimension)
	require.Equal(t, int64(len(data)), head(m)+m.Rows()*int64(m.RowBytes()))
	whole := make([]byte, m.Rows()*int64(m.RowBytes()))
	if m.Rows() == 0 {
		return whole
	}
	n, err := m.ReadRows(whole, 0)
	if err != nil {
		require.ErrorAs(t, err, &where)
		require.Less(t, where.Offset, int64(len(data)))
		return nil
	}
	require.Equal(t, m.Rows(), int64(n))
	last := make([]byte, m.RowBytes())
	_, err = m.ReadRows(last, m.Rows()-1)
	require.NoError(t, err)
	require.Equal(t, whole[len(whole)-len(last):], last)
	return whole
}

// wanted finds in any header the fields that numpy would read. It is simple on purpose.
var wanted = regexp.MustCompile(`^\s*\{\s*(?:(?:["'](?:descr|fortran_order|shape)["'])\s*:\s*(?:["'][<>|=]?[a-z][0-9]["']|False|\(\s*[0-9]+L?\s*,?\s*(?:[0-9]+L?\s*,?\s*)?\))\s*,?\s*){3}\}\s*$`)

func FuzzNpy(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := rowsOf("x.npy", data)
		head := func(m *vectorfile.Matrix) int64 { return int64(len(data)) - m.Rows()*int64(m.RowBytes()) }
		whole := holds(t, rows, err, data, head)
		codes, codesErr := codesOf("x.npy", data)
		holds(t, codes, codesErr, data, head)
		if err != nil {
			return
		}
		header := data[10:head(rows)]
		if data[6] != 1 {
			header = data[12:head(rows)]
		}
		require.Regexp(t, wanted, string(header))

		var again bytes.Buffer
		w, err := vectorfile.NewNpyWriter(&again, rows.ElementType(), rows.Rows(), int64(rows.Dimension()))
		require.NoError(t, err)
		_, err = w.Write(whole)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		m, err := rowsOf("x.npy", again.Bytes())
		require.NoError(t, err)
		require.Equal(t, rows.Dimension(), m.Dimension())
		require.Equal(t, whole, holds(t, m, nil, again.Bytes(), func(m *vectorfile.Matrix) int64 {
			return int64(again.Len()) - m.Rows()*int64(m.RowBytes())
		}))
	})
}

func FuzzRows(f *testing.F) {
	f.Fuzz(func(t *testing.T, format byte, data []byte) {
		name := "x" + []string{".fvecs", ".bvecs", ".ivecs", ".fbin", ".f16bin", ".u8bin", ".i8bin"}[format%7]
		head := func(m *vectorfile.Matrix) int64 {
			if format%7 < 3 {
				return 4 * m.Rows()
			}
			return 8
		}
		m, err := rowsOf(name, data)
		whole := holds(t, m, err, data, head)
		if whole == nil {
			return
		}
		switch format % 7 {
		case 0, 1:
			require.Equal(t, data, prefixedFile(whole, m.RowBytes(), m.Dimension()))
		case 2:
			codes, err := codesOf(name, data)
			holds(t, codes, err, data, head)
		default:
			require.Equal(t, data, binFile(whole, int(m.Rows()), m.Dimension()))
		}
	})
}

func TestSeedCorporaComeFromGoldenFiles(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("testdata", "numpy", "*.npy"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		name = filepath.Base(name)
		seed(t, "FuzzNpy", name, fmt.Sprintf("[]byte(%q)", golden(t, name)))
	}
	seed(t, "FuzzNpy", "other-quotes", fmt.Sprintf("[]byte(%q)", npyFile(`{"shape":(2L,1),"descr":"|i1","fortran_order":False}`, []byte{1, 2})))
	seed(t, "FuzzNpy", "negative-length", fmt.Sprintf("[]byte(%q)", npyFile(npyHeader("<f4", "(-1, 3)"), nil)))
	for format, name := range []string{"f4.fvecs", "u1.bvecs", "i4.ivecs", "f4.fbin", "f2.f16bin", "u1.u8bin", "i1.i8bin"} {
		seed(t, "FuzzRows", name, fmt.Sprintf("byte(%s)\n[]byte(%q)", strconv.QuoteRuneToASCII(rune(format)), golden(t, name)))
	}
	mixed := append(prefixedFile(make([]byte, 8), 8, 2), prefixedFile(make([]byte, 12), 12, 3)...)
	seed(t, "FuzzRows", "mixed", fmt.Sprintf("byte('\\x00')\n[]byte(%q)", mixed))
}

// seed compares a file of a seed corpus with its source, or writes it.
func seed(t *testing.T, target, name, values string) {
	t.Helper()
	path := filepath.Join("testdata", "fuzz", target, name)
	want := "go test fuzz v1\n" + values + "\n"
	if *repotest.Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./internal/vectorfile -run SeedCorpora -update writes it")
	require.Equal(t, want, string(got), name)
}
