package e2e

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"regexp"
)

// resigned is a checkpoint document that names another cluster, with its checksum made anew.
func resigned(doc []byte) []byte {
	body, _, _ := bytes.Cut(doc, []byte(",\n  \"checksum\""))
	body = regexp.MustCompile(`"system_id": "[0-9]+"`).ReplaceAll(body, []byte(`"system_id": "7000000000000000001"`))
	return fmt.Appendf(body, ",\n  \"checksum\": \"crc32c:%08x\"\n}\n", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}
