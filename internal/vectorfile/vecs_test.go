package vectorfile_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

func TestDamagedPrefixedFilesAreRefusedAtTheirRow(t *testing.T) {
	row := func(dimension int) []byte { return prefixedFile(make([]byte, 4*dimension), 4*dimension, dimension) }
	join := func(rows ...[]byte) []byte { return bytes.Join(rows, nil) }
	bad, no := vectorfile.ErrFormat, vectorfile.ErrUnsupported
	swapped := binary.BigEndian.AppendUint32(nil, 128)
	for name, tc := range map[string]struct {
		file []byte
		kind error
		at   int64
		says string
	}{
		"empty":                            {nil, bad, 0, "it has no dimension"},
		"three bytes":                      {[]byte{1, 0, 0}, bad, 0, "after 3 bytes"},
		"dimension 0":                      {make([]byte, 8), bad, 0, "dimension 0"},
		"a negative dimension":             {join([]byte{0xff, 0xff, 0xff, 0xff}, row(3)), bad, 0, "dimension -1"},
		"one dimension too many":           {row(65_537), bad, 0, "dimension 65537"},
		"big endian":                       {join(swapped, make([]byte, 512)), no, 0, "or 128 if the file is big endian"},
		"text":                             {[]byte("0.1 0.2 0.3\n"), bad, 0, "the right format"},
		"only a dimension":                 {row(3)[:4], bad, 0, "row 0 ends after 4 of 16 bytes"},
		"the first row is cut":             {row(3)[:15], bad, 0, "row 0 ends after 15 of 16 bytes"},
		"the last row lacks a byte":        {join(row(3), row(3))[:31], bad, 16, "row 1 ends after 15 of 16 bytes"},
		"the last dimension is cut":        {join(row(3), row(3), row(3))[:34], bad, 32, "row 2 ends after 2 of 16 bytes"},
		"a byte too many":                  {join(row(3), []byte{3}), bad, 16, "row 1 ends after 1 of 16 bytes"},
		"the last row is longer":           {join(row(3), row(3), row(4)), bad, 32, "row 2 has dimension 4, the rows before it 3"},
		"the last row is shorter":          {join(row(3), row(3), row(2)), bad, 32, "row 2 has dimension 2"},
		"a row amid them is longer":        {join(row(3), row(5), row(3), row(3)), bad, 16, "row 1 has dimension 5"},
		"a row that ends in three bytes":   {join(row(3), row(2), row(3), row(3))[:59], bad, 16, "row 1 has dimension 2"},
		"a negative dimension amid others": {join(row(3), []byte{0xff, 0xff, 0xff, 0xff}, row(3)), bad, 16, "row 1 has dimension -1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rowsOf("x.fvecs", tc.file)
			require.Contains(t, refused(t, err, tc.kind, tc.at), tc.says)
		})
	}
}

func TestVecsRefusesMixedDimensions(t *testing.T) {
	// Rows of mixed dimensions whose sizes add up are refused when they are read.
	// Rows of 2, 3 and 1 elements are as long as three of 2.
	file := bytes.Join([][]byte{prefixedFile(make([]byte, 8), 8, 2), prefixedFile(make([]byte, 12), 12, 3), prefixedFile(make([]byte, 4), 4, 1)}, nil)
	m, err := rowsOf("x.fvecs", file)
	require.NoError(t, err)
	buffer := make([]byte, 3*m.RowBytes())
	n, err := m.ReadRows(buffer[:m.RowBytes()], 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = m.ReadRows(buffer, 0)
	require.Contains(t, refused(t, err, vectorfile.ErrFormat, 12), "row 1 has dimension 3, the rows before it 2")
}

func TestIntegersAsVectorsAndAsCodes(t *testing.T) {
	// Integers are read as vectors if float32 holds them exactly, and as codes if they are not
	// negative.
	file := func(values ...int32) []byte {
		var rows []byte
		for _, v := range values {
			rows = binary.LittleEndian.AppendUint32(rows, uint32(v))
		}
		return prefixedFile(rows, 8, 2)
	}
	exact := []int32{0, -1, 1 << 24, -1 << 24, 1<<24 + 2, math.MinInt32}
	m, err := rowsOf("x.ivecs", file(exact...))
	require.NoError(t, err)
	var want []byte
	for _, v := range exact {
		want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(v)))
	}
	require.Equal(t, want, all(t, m, 2))

	m, err = rowsOf("x.ivecs", file(0, 0, 0, 1<<24+1))
	require.NoError(t, err)
	_, err = m.ReadRows(make([]byte, 16), 0)
	require.Contains(t, refused(t, err, vectorfile.ErrUnsupported, 12), "row 1: element 1 is 16777217")

	m, err = codesOf("x.ivecs", file(0, math.MaxInt32))
	require.NoError(t, err)
	require.Equal(t, vectorfile.U32, m.ElementType())
	require.Equal(t, []byte{0, 0, 0, 0, 255, 255, 255, 127}, all(t, m, 1))

	m, err = codesOf("x.ivecs", file(1, 2, -1, 3))
	require.NoError(t, err)
	_, err = m.ReadRows(make([]byte, 16), 0)
	require.Contains(t, refused(t, err, vectorfile.ErrUnsupported, 12), "row 1: code 0 is -1")
}

func TestDamagedFilesWithAHeadAreRefused(t *testing.T) {
	six := make([]byte, 6)
	bad := vectorfile.ErrFormat
	for name, tc := range map[string]struct {
		file []byte
		at   int64
		says string
	}{
		"empty":                    {nil, 0, "0 bytes, and its head alone 8"},
		"half a head":              {binFile(nil, 1, 1)[:7], 0, "7 bytes"},
		"dimension 0":              {binFile(nil, 5, 0), 4, "dimension is 0"},
		"one dimension too many":   {binFile(nil, 0, 65_537), 4, "65537"},
		"all bits set":             {bytes.Repeat([]byte{255}, 8), 4, "4294967295"},
		"a byte too few":           {binFile(six, 2, 3)[:13], 0, "6 bytes and the file has 5, which would be 1 rows"},
		"a byte too many":          {append(binFile(six, 2, 3), 0), 0, "6 bytes and the file has 7"},
		"the head of a larger one": {binFile(six, 1_000_000_000, 3), 0, "which would be 2 rows"},
		"the most rows there are":  {binFile(six, math.MaxUint32, 65_536), 0, "4294967295 rows of dimension 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rowsOf("x.u8bin", tc.file)
			require.Contains(t, refused(t, err, bad, tc.at), tc.says)
		})
	}
	_, err := rowsOf("x.fbin", binFile(make([]byte, 24), 2, 3))
	require.NoError(t, err)
	_, err = rowsOf("x.fbin", binFile(six, 2, 3))
	require.ErrorContains(t, err, "in F32 are 24 bytes and the file has 6")
}
