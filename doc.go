// Package bridge is the root of the module and holds no code, only the test that
// keeps its packages apart. The program is cmd/bridge.
package bridge
