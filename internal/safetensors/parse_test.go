package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/safetensors"
)

func TestParseReadsFilesOfOtherWriters(t *testing.T) {
	largest := `{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`
	for name, header := range map[string]string{
		"keys in another order":  `{"a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}}`,
		"spaces and lines":       "{ \"a\" :\n\t{\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}\r\n}  ",
		"escapes":                `{"\u0061":{"dtype":"U\u0038","shape":[2],"data_offsets":[0,2]}}`,
		"metadata last":          `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{}}`,
		"narrow ones first":      `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}}`,
		"nothing amid something": `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`,
		"the largest header":     largest + strings.Repeat(" ", safetensors.MaxHeader-len(largest)),
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parse(fileOf(header, 5, 6))
			require.NoError(t, err)
			a, ok := f.Tensor("a")
			require.True(t, ok)
			require.Equal(t, safetensors.Tensor{Name: "a", Type: safetensors.U8, Shape: []int64{2}, Offset: int64(8 + len(header)), Size: 2}, a)
			require.Equal(t, []byte{5, 6}, dataOf(t, f, a))
			_, ok = f.Tensor("c")
			require.False(t, ok)
		})
	}
}

// entry returns a header with one tensor.
func entry(dtype, shape, offsets string) string {
	return `{"a":{"dtype":` + dtype + `,"shape":` + shape + `,"data_offsets":` + offsets + `}}`
}

func TestParseRefusesDamagedAndHostileFiles(t *testing.T) {
	bad, no := safetensors.ErrFormat, safetensors.ErrUnsupported
	two := func(offsets string) []byte {
		return fileOf(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":`+offsets+`}}`, 1, 2, 3, 4)
	}
	for name, tc := range map[string]struct {
		file []byte
		kind error
		says string
	}{
		"empty":                          {nil, bad, "0 bytes"},
		"seven bytes":                    {make([]byte, 7), bad, "7 bytes"},
		"no header":                      {make([]byte, 8), bad, "begin with '{'"},
		"a header beyond the file":       {fileOf("{}  ")[:11], bad, "4 bytes, and 3 are left"},
		"a header of 2^64-1 bytes":       {bytes.Repeat([]byte{255}, 100), bad, "18446744073709551615 bytes"},
		"a header one too long":          {fileOf("{}" + strings.Repeat(" ", safetensors.MaxHeader-1)), no, "allowed are 1048576"},
		"another file":                   {[]byte("GGUF\x00\x00\x00\x00{}"), bad, "are left of the file"},
		"no UTF-8":                       {fileOf("{\"\xff\":1}"), bad, "not UTF-8"},
		"a surrogate in UTF-8":           {fileOf("{\"\xed\xa0\x80\":1}"), bad, "not UTF-8"},
		"half a surrogate pair":          {fileOf(`{"\ud800":1}`), bad, "a key is no text"},
		"a byte order mark":              {fileOf("\ufeff{}"), bad, "begin with '{'"},
		"a space in front":               {fileOf(" {}"), bad, "begin with '{'"},
		"a list":                         {fileOf("[]"), bad, "begin with '{'"},
		"no end":                         {fileOf("{"), bad, "ends amid"},
		"no end of a string":             {fileOf(`{"a`), bad, "ends amid"},
		"two dictionaries":               {fileOf("{}{}"), bad, "continues after"},
		"a zero byte behind it":          {fileOf("{}\x00"), bad, "continues after"},
		"a line behind it":               {fileOf("{}\n"), bad, "continues after"},
		"a comma too many":               {fileOf(`{"__metadata__":{},}`), bad, "not JSON"},
		"a comment":                      {fileOf(`{/**/}`), bad, "not JSON"},
		"a key that is a number":         {fileOf(`{1:2}`), bad, "not JSON"},
		"a tensor twice":                 {fileOf(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`), bad, `the header has "a" twice`},
		"a tensor twice by escapes":      {fileOf(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`), bad, "twice"},
		"metadata twice":                 {fileOf(`{"__metadata__":{},"__metadata__":{}}`), bad, "twice"},
		"a text twice":                   {fileOf(`{"__metadata__":{"k":"1","k":"1"}}`), bad, `__metadata__ has "k" twice`},
		"dtype twice":                    {fileOf(`{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}`), bad, `has "dtype" twice`},
		"metadata that nest":             {fileOf(`{"__metadata__":{"k":{}}}`), bad, "no text"},
		"metadata with a number":         {fileOf(`{"__metadata__":{"k":1}}`), bad, "no text"},
		"metadata with nothing":          {fileOf(`{"__metadata__":{"k":null}}`), bad, "no text"},
		"metadata as a text":             {fileOf(`{"__metadata__":"k"}`), bad, "no dictionary"},
		"deep lists":                     {fileOf(`{"a":` + strings.Repeat("[", 500_000)), bad, "no dictionary"},
		"deep lists in a shape":          {fileOf(entry(`"U8"`, strings.Repeat("[", 500_000), "")), bad, "integer"},
		"deep dictionaries":              {fileOf(strings.Repeat(`{"a":`, 200_000)), bad, "unknown key"},
		"a tensor that is null":          {fileOf(`{"a":null}`), bad, "no dictionary"},
		"a tensor without a name":        {fileOf(`{"":{}}`), no, "no name"},
		"an empty tensor":                {fileOf(`{"a":{}}`), bad, "lacks dtype"},
		"no dtype":                       {fileOf(`{"a":{"shape":[0],"data_offsets":[0,0]}}`), bad, "lacks dtype"},
		"no shape":                       {fileOf(`{"a":{"dtype":"U8","data_offsets":[0,0]}}`), bad, "lacks dtype"},
		"no offsets":                     {fileOf(`{"a":{"dtype":"U8","shape":[0]}}`), bad, "lacks dtype"},
		"one offset":                     {fileOf(entry(`"U8"`, "[0]", "[0]")), bad, "lacks dtype"},
		"three offsets":                  {fileOf(entry(`"U8"`, "[0]", "[0,0,0]")), no, "more than 2"},
		"an unknown key":                 {fileOf(`{"a":{"dtype":"U8","strides":[0]}}`), bad, `unknown key "strides"`},
		"an unknown type":                {fileOf(entry(`"F8_E4M3"`, "[0]", "[0,0]")), no, `"F8_E4M3"`},
		"a type without a name":          {fileOf(entry(`""`, "[0]", "[0,0]")), no, `""`},
		"a type in small letters":        {fileOf(entry(`"u8"`, "[0]", "[0,0]")), no, `"u8"`},
		"a type that is a number":        {fileOf(entry(`1`, "[0]", "[0,0]")), bad, "no text"},
		"a shape that is a number":       {fileOf(entry(`"U8"`, "0", "[0,0]")), bad, "no list"},
		"nine lengths":                   {fileOf(entry(`"U8"`, "[0,1,1,1,1,1,1,1,1]", "[0,0]")), no, "more than 8"},
		"a negative length":              {fileOf(entry(`"U8"`, "[-1]", "[0,0]")), bad, "integer"},
		"a negative zero":                {fileOf(entry(`"U8"`, "[-0]", "[0,0]")), bad, "integer"},
		"a fraction":                     {fileOf(entry(`"U8"`, "[1.0]", "[0,1]"), 1), bad, "integer"},
		"an exponent":                    {fileOf(entry(`"U8"`, "[1e0]", "[0,1]"), 1), bad, "integer"},
		"a leading zero":                 {fileOf(entry(`"U8"`, "[01]", "[0,1]"), 1), bad, "not JSON"},
		"2^63":                           {fileOf(entry(`"U8"`, "[9223372036854775808]", "[0,0]")), bad, "integer"},
		"true":                           {fileOf(entry(`"U8"`, "[true]", "[0,1]"), 1), bad, "integer"},
		"a number in quotes":             {fileOf(entry(`"U8"`, `["1"]`, "[0,1]"), 1), bad, "integer"},
		"a shape that overflows":         {fileOf(entry(`"U8"`, "[4294967296,4294967296]", "[0,0]")), bad, "not its size"},
		"a size that overflows":          {fileOf(entry(`"F64"`, "[2305843009213693952]", "[0,0]")), bad, "not its size"},
		"an end before the beginning":    {fileOf(entry(`"U8"`, "[1]", "[1,0]"), 1), bad, "not its size"},
		"more data than the shape":       {fileOf(entry(`"U8"`, "[1]", "[0,2]"), 1, 2), bad, "not its size"},
		"less data than the shape":       {fileOf(entry(`"F32"`, "[1]", "[0,2]"), 1, 2), bad, "not its size"},
		"a tensor behind the end":        {fileOf(entry(`"U8"`, "[3]", "[0,3]"), 1, 2), bad, "end at 3, and the file has 2"},
		"a tensor far behind the end":    {fileOf(entry(`"U8"`, "[9223372036854775807]", "[0,9223372036854775807]"), 1), bad, "the file has 1"},
		"a byte behind the last":         {fileOf(entry(`"U8"`, "[1]", "[0,1]"), 1, 2), bad, "1 bytes follow"},
		"data of nobody":                 {fileOf("{}", 1), bad, "1 bytes follow"},
		"a hole in front":                {fileOf(entry(`"U8"`, "[1]", "[1,2]"), 1, 2), bad, "no tensor owns the data from 0 to 1"},
		"a hole between":                 {two("[3,5]"), bad, "no tensor owns the data from 2 to 3"},
		"an overlap":                     {two("[1,3]"), bad, "begin at 1, and those before it end at 2"},
		"the same bytes":                 {two("[0,2]"), bad, "begin at 0, and those before it end at 2"},
		"terminal codes in a name":       {fileOf(`{"\u001b[2J":1}`), bad, `"\x1b[2J" is no dictionary`},
		"terminal codes in syntax error": {fileOf("{\x1b[2J}"), bad, `'\x1b'`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tc.file)
			var where *safetensors.FormatError
			require.ErrorAs(t, err, &where)
			require.ErrorIs(t, err, tc.kind, "%v", err)
			require.ErrorContains(t, err, tc.says)
			require.Contains(t, where.What, ": ", "what to do is said behind a colon")
			require.LessOrEqual(t, where.Offset, int64(len(tc.file)))
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
}

func TestParseErrorsHaveTheOffset(t *testing.T) {
	header := `{"a":{"dtype":"U8","shape":[1,-1]`
	_, err := parse(fileOf(header))
	var where *safetensors.FormatError
	require.ErrorAs(t, err, &where)
	require.Equal(t, int64(8+len(header)-1), where.Offset)
	_, err = parse(fileOf("{\"ab\xff"))
	require.ErrorAs(t, err, &where)
	require.Equal(t, int64(12), where.Offset)
	_, err = parse(fileOf("{}", 7))
	require.ErrorAs(t, err, &where)
	require.Equal(t, int64(10), where.Offset)
}

func TestParseRefusesTruncatedFiles(t *testing.T) {
	file := written(t, map[string]string{"k": "v"}, source("a", safetensors.F32, count(8), 2), source("b", safetensors.U8, count(3), 3))
	for n := range file {
		_, err := parse(file[:n])
		require.ErrorIs(t, err, safetensors.ErrFormat, "cut to %d bytes", n)
	}
	_, err := parse(append(file, 0))
	require.ErrorIs(t, err, safetensors.ErrFormat)
}

func TestReadErrorsAreNotFormatErrors(t *testing.T) {
	worn := errors.New("sector not found")
	_, err := safetensors.Parse(failing{iotest.ErrReader(worn)}, 100)
	require.ErrorIs(t, err, worn)
	require.NotErrorIs(t, err, safetensors.ErrFormat)
	file := fileOf(`{}  `)
	_, err = safetensors.Parse(bytes.NewReader(file[:10]), int64(len(file)))
	require.ErrorIs(t, err, safetensors.ErrFormat)
	require.ErrorContains(t, err, "shorter since")
}

// failing reads from the start whatever is asked.
type failing struct{ io.Reader }

func (f failing) ReadAt(p []byte, _ int64) (int, error) { return f.Read(p) }

func TestParseAllocatesNoClaimedSizes(t *testing.T) {
	// A terabyte that is not there, behind a header that says so.
	header := entry(`"U8"`, "[1099511627776]", "[0,1099511627776]")
	size := int64(8+len(header)) + 1<<40
	lead := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	f, err := safetensors.Parse(bytes.NewReader(append(lead, header...)), size)
	require.NoError(t, err)
	a, _ := f.Tensor("a")
	require.Equal(t, int64(1)<<40, a.Size)
}
