/* refused.c: functions of CUDA's that are not here: they fail with cudaErrorNotSupported, and vgpu_refused tells which were asked for.
 *
 * Without them a call would fall through to the real runtime, which knows nothing of this one. CUDA's headers are left out, so that
 * one form serves all.
 */
#include <stdbool.h>

struct call {
  const char *name;
  long count;
  bool known;
  struct call *next;
};
int refuse(struct call *call);
int refuse_driver(struct call *call);

#define R(function) AS(function, refuse)
#define D(function) AS(function, refuse_driver)
#define AS(function, refusing)                                   \
  __attribute__((visibility("default"))) int function(void); \
  int function(void) {                                \
    static struct call call = {.name = #function};    \
    return refusing(&call);                           \
  }

/* clang-format off */
R(__cudaGetProcAddress) R(__cudaLaunchKernel_ptsz) 

R(cudaArrayGetInfo) R(cudaArrayGetMemoryRequirements) R(cudaArrayGetPlane) R(cudaArrayGetSparseProperties)
R(cudaChooseDevice) R(cudaCreateChannelDesc) R(cudaCreateSurfaceObject) R(cudaCreateTextureObject) R(cudaCtxResetPersistingL2Cache)
R(cudaDestroyExternalMemory) R(cudaDestroyExternalSemaphore) R(cudaDestroySurfaceObject) R(cudaDestroyTextureObject)
R(cudaDeviceFlushGPUDirectRDMAWrites) R(cudaDeviceGetByPCIBusId) R(cudaDeviceGetCacheConfig) R(cudaDeviceGetHostAtomicCapabilities)
R(cudaDeviceGetLimit) R(cudaDeviceGetMemPool) R(cudaDeviceGetNvSciSyncAttributes) R(cudaDeviceGetP2PAtomicCapabilities)
R(cudaDeviceGetSharedMemConfig) R(cudaDeviceGetTexture1DLinearMaxWidth) R(cudaDeviceGraphMemTrim) R(cudaDeviceRegisterAsyncNotification)
R(cudaDeviceReset) R(cudaDeviceSetCacheConfig) R(cudaDeviceSetLimit) R(cudaDeviceSetMemPool) R(cudaDeviceSetSharedMemConfig)
R(cudaDeviceUnregisterAsyncNotification) R(cudaEGLStreamConsumerAcquireFrame) R(cudaEGLStreamConsumerConnect) R(cudaEGLStreamConsumerConnectWithFlags)
R(cudaEGLStreamConsumerDisconnect) R(cudaEGLStreamConsumerReleaseFrame) R(cudaEGLStreamProducerConnect) R(cudaEGLStreamProducerDisconnect)
R(cudaEGLStreamProducerPresentFrame) R(cudaEGLStreamProducerReturnFrame) R(cudaEventCreateFromEGLSync) R(cudaEventRecordWithFlags_ptsz)
R(cudaEventRecord_ptsz) R(cudaExternalMemoryGetMappedBuffer) R(cudaExternalMemoryGetMappedMipmappedArray) R(cudaFreeArray) R(cudaFreeAsync_ptsz)
R(cudaFreeMipmappedArray) R(cudaFuncGetName) R(cudaFuncGetParamInfo) R(cudaFuncSetCacheConfig) R(cudaFuncSetSharedMemConfig) R(cudaGLGetDevices)
R(cudaGLMapBufferObject) R(cudaGLMapBufferObjectAsync) R(cudaGLRegisterBufferObject) R(cudaGLSetBufferObjectMapFlags) R(cudaGLSetGLDevice)
R(cudaGLUnmapBufferObject) R(cudaGLUnmapBufferObjectAsync) R(cudaGLUnregisterBufferObject) R(cudaGetChannelDesc) R(cudaGetDeviceFlags)
R(cudaGetDriverEntryPointByVersion_ptsz) R(cudaGetDriverEntryPoint_ptsz) R(cudaGetExportTable) R(cudaGetFuncBySymbol) R(cudaGetKernel)
R(cudaGetMipmappedArrayLevel) R(cudaGetSurfaceObjectResourceDesc) R(cudaGetSymbolAddress) R(cudaGetSymbolSize) R(cudaGetTextureObjectResourceDesc)
R(cudaGetTextureObjectResourceViewDesc) R(cudaGetTextureObjectTextureDesc) R(cudaGraphAddChildGraphNode) R(cudaGraphAddDependencies)
R(cudaGraphAddEmptyNode) R(cudaGraphAddEventRecordNode) R(cudaGraphAddEventWaitNode) R(cudaGraphAddExternalSemaphoresSignalNode)
R(cudaGraphAddExternalSemaphoresWaitNode) R(cudaGraphAddHostNode) R(cudaGraphAddKernelNode) R(cudaGraphAddMemAllocNode) R(cudaGraphAddMemFreeNode)
R(cudaGraphAddMemcpyNode) R(cudaGraphAddMemcpyNode1D) R(cudaGraphAddMemcpyNodeFromSymbol) R(cudaGraphAddMemcpyNodeToSymbol) R(cudaGraphAddMemsetNode)
R(cudaGraphAddNode) R(cudaGraphChildGraphNodeGetGraph) R(cudaGraphClone) R(cudaGraphConditionalHandleCreate) R(cudaGraphCreate)
R(cudaGraphDebugDotPrint) R(cudaGraphDestroyNode) R(cudaGraphEventRecordNodeGetEvent) R(cudaGraphEventRecordNodeSetEvent)
R(cudaGraphEventWaitNodeGetEvent) R(cudaGraphEventWaitNodeSetEvent) R(cudaGraphExecChildGraphNodeSetParams) R(cudaGraphExecEventRecordNodeSetEvent)
R(cudaGraphExecEventWaitNodeSetEvent) R(cudaGraphExecExternalSemaphoresSignalNodeSetParams) R(cudaGraphExecExternalSemaphoresWaitNodeSetParams)
R(cudaGraphExecGetFlags) R(cudaGraphExecHostNodeSetParams) R(cudaGraphExecKernelNodeSetParams) R(cudaGraphExecMemcpyNodeSetParams)
R(cudaGraphExecMemcpyNodeSetParams1D) R(cudaGraphExecMemcpyNodeSetParamsFromSymbol) R(cudaGraphExecMemcpyNodeSetParamsToSymbol)
R(cudaGraphExecMemsetNodeSetParams) R(cudaGraphExecNodeSetParams) R(cudaGraphExecUpdate) R(cudaGraphExternalSemaphoresSignalNodeGetParams)
R(cudaGraphExternalSemaphoresSignalNodeSetParams) R(cudaGraphExternalSemaphoresWaitNodeGetParams) R(cudaGraphExternalSemaphoresWaitNodeSetParams)
R(cudaGraphGetEdges) R(cudaGraphGetRootNodes) R(cudaGraphHostNodeGetParams) R(cudaGraphHostNodeSetParams) R(cudaGraphInstantiateWithParams)
R(cudaGraphInstantiateWithParams_ptsz) R(cudaGraphKernelNodeCopyAttributes) R(cudaGraphKernelNodeGetAttribute) R(cudaGraphKernelNodeGetParams)
R(cudaGraphKernelNodeSetAttribute) R(cudaGraphKernelNodeSetParams) R(cudaGraphLaunch_ptsz) R(cudaGraphMemAllocNodeGetParams)
R(cudaGraphMemFreeNodeGetParams) R(cudaGraphMemcpyNodeGetParams) R(cudaGraphMemcpyNodeSetParams) R(cudaGraphMemcpyNodeSetParams1D)
R(cudaGraphMemcpyNodeSetParamsFromSymbol) R(cudaGraphMemcpyNodeSetParamsToSymbol) R(cudaGraphMemsetNodeGetParams) R(cudaGraphMemsetNodeSetParams)
R(cudaGraphNodeFindInClone) R(cudaGraphNodeGetDependencies) R(cudaGraphNodeGetDependentNodes) R(cudaGraphNodeGetEnabled) R(cudaGraphNodeGetType)
R(cudaGraphNodeSetEnabled) R(cudaGraphNodeSetParams) R(cudaGraphReleaseUserObject) R(cudaGraphRemoveDependencies) R(cudaGraphRetainUserObject)
R(cudaGraphUpload) R(cudaGraphUpload_ptsz) R(cudaGraphicsEGLRegisterImage) R(cudaGraphicsGLRegisterBuffer) R(cudaGraphicsGLRegisterImage)
R(cudaGraphicsMapResources) R(cudaGraphicsResourceGetMappedEglFrame) R(cudaGraphicsResourceGetMappedMipmappedArray)
R(cudaGraphicsResourceGetMappedPointer) R(cudaGraphicsResourceSetMapFlags) R(cudaGraphicsSubResourceGetMappedArray) R(cudaGraphicsUnmapResources)
R(cudaGraphicsUnregisterResource) R(cudaGraphicsVDPAURegisterOutputSurface) R(cudaGraphicsVDPAURegisterVideoSurface) R(cudaImportExternalMemory)
R(cudaImportExternalSemaphore) R(cudaIpcCloseMemHandle) R(cudaIpcOpenEventHandle) R(cudaIpcOpenMemHandle) R(cudaKernelSetAttributeForDevice)
R(cudaLaunchCooperativeKernel_ptsz) R(cudaLaunchHostFunc_ptsz) R(cudaLaunchKernelExC_ptsz) R(cudaLaunchKernel_ptsz) R(cudaLibraryEnumerateKernels)
R(cudaLibraryGetGlobal) R(cudaLibraryGetKernel) R(cudaLibraryGetKernelCount) R(cudaLibraryGetManaged) R(cudaLibraryGetUnifiedFunction)
R(cudaLibraryLoadData) R(cudaLibraryLoadFromFile) R(cudaLibraryUnload) R(cudaLogsCurrent) R(cudaLogsDumpToFile) R(cudaLogsDumpToMemory)
R(cudaLogsRegisterCallback) R(cudaLogsUnregisterCallback) R(cudaMalloc3D) R(cudaMalloc3DArray) R(cudaMallocArray) R(cudaMallocAsync_ptsz)
R(cudaMallocFromPoolAsync_ptsz) R(cudaMallocManaged) R(cudaMallocMipmappedArray) R(cudaMallocPitch) R(cudaMemAdvise)
R(cudaMemDiscardAndPrefetchBatchAsync) R(cudaMemDiscardAndPrefetchBatchAsync_ptsz) R(cudaMemDiscardBatchAsync) R(cudaMemDiscardBatchAsync_ptsz)
R(cudaMemGetDefaultMemPool) R(cudaMemGetMemPool) R(cudaMemPoolCreate) R(cudaMemPoolDestroy) R(cudaMemPoolExportPointer)
R(cudaMemPoolExportToShareableHandle) R(cudaMemPoolGetAccess) R(cudaMemPoolImportFromShareableHandle) R(cudaMemPoolImportPointer)
R(cudaMemPrefetchAsync) R(cudaMemPrefetchAsync_ptsz) R(cudaMemPrefetchBatchAsync) R(cudaMemPrefetchBatchAsync_ptsz) R(cudaMemRangeGetAttribute)
R(cudaMemRangeGetAttributes) R(cudaMemSetMemPool) R(cudaMemcpy2DArrayToArray) R(cudaMemcpy2DArrayToArray_ptds) R(cudaMemcpy2DAsync_ptsz)
R(cudaMemcpy2DFromArray) R(cudaMemcpy2DFromArrayAsync) R(cudaMemcpy2DFromArrayAsync_ptsz) R(cudaMemcpy2DFromArray_ptds) R(cudaMemcpy2DToArray)
R(cudaMemcpy2DToArrayAsync) R(cudaMemcpy2DToArrayAsync_ptsz) R(cudaMemcpy2DToArray_ptds) R(cudaMemcpy2D_ptds) R(cudaMemcpy3D) R(cudaMemcpy3DAsync)
R(cudaMemcpy3DAsync_ptsz) R(cudaMemcpy3DBatchAsync) R(cudaMemcpy3DBatchAsync_ptsz) R(cudaMemcpy3DPeer) R(cudaMemcpy3DPeerAsync)
R(cudaMemcpy3DPeerAsync_ptsz) R(cudaMemcpy3DPeer_ptds) R(cudaMemcpy3D_ptds) R(cudaMemcpyArrayToArray) R(cudaMemcpyArrayToArray_ptds)
R(cudaMemcpyAsync_ptsz) R(cudaMemcpyBatchAsync) R(cudaMemcpyBatchAsync_ptsz) R(cudaMemcpyFromArray) R(cudaMemcpyFromArrayAsync)
R(cudaMemcpyFromArrayAsync_ptsz) R(cudaMemcpyFromArray_ptds) R(cudaMemcpyFromSymbol) R(cudaMemcpyFromSymbolAsync) R(cudaMemcpyFromSymbolAsync_ptsz)
R(cudaMemcpyFromSymbol_ptds) R(cudaMemcpyToArray) R(cudaMemcpyToArrayAsync) R(cudaMemcpyToArrayAsync_ptsz) R(cudaMemcpyToArray_ptds)
R(cudaMemcpyToSymbol) R(cudaMemcpyToSymbolAsync) R(cudaMemcpyToSymbolAsync_ptsz) R(cudaMemcpyToSymbol_ptds) R(cudaMemcpy_ptds) R(cudaMemset2D)
R(cudaMemset2DAsync) R(cudaMemset2DAsync_ptsz) R(cudaMemset2D_ptds) R(cudaMemset3D) R(cudaMemset3DAsync) R(cudaMemset3DAsync_ptsz)
R(cudaMemset3D_ptds) R(cudaMemsetAsync_ptsz) R(cudaMemset_ptds) R(cudaMipmappedArrayGetMemoryRequirements) R(cudaMipmappedArrayGetSparseProperties)
R(cudaOccupancyAvailableDynamicSMemPerBlock) R(cudaOccupancyMaxActiveClusters) R(cudaOccupancyMaxPotentialClusterSize) R(cudaProfilerStart)
R(cudaProfilerStop) R(cudaSetDeviceFlags) R(cudaSetValidDevices) R(cudaSignalExternalSemaphoresAsync) R(cudaSignalExternalSemaphoresAsync_ptsz)
R(cudaStreamAddCallback_ptsz) R(cudaStreamAttachMemAsync) R(cudaStreamAttachMemAsync_ptsz) R(cudaStreamBeginCaptureToGraph)
R(cudaStreamBeginCaptureToGraph_ptsz) R(cudaStreamBeginCapture_ptsz) R(cudaStreamCopyAttributes) R(cudaStreamCopyAttributes_ptsz)
R(cudaStreamEndCapture_ptsz) R(cudaStreamGetAttribute) R(cudaStreamGetAttribute_ptsz) R(cudaStreamGetCaptureInfo_ptsz) R(cudaStreamGetDevice_ptsz)
R(cudaStreamGetFlags_ptsz) R(cudaStreamGetId_ptsz) R(cudaStreamGetPriority_ptsz) R(cudaStreamIsCapturing_ptsz) R(cudaStreamQuery_ptsz)
R(cudaStreamSetAttribute) R(cudaStreamSetAttribute_ptsz) R(cudaStreamSynchronize_ptsz) R(cudaStreamUpdateCaptureDependencies)
R(cudaStreamUpdateCaptureDependencies_ptsz) R(cudaStreamWaitEvent_ptsz) R(cudaUserObjectRelease) R(cudaUserObjectRetain) R(cudaVDPAUGetDevice)
R(cudaVDPAUSetVDPAUDevice) R(cudaWaitExternalSemaphoresAsync) R(cudaWaitExternalSemaphoresAsync_ptsz) D(cuCtxFromGreenCtx)
D(cuDevResourceGenerateDesc) D(cuDevSmResourceSplitByCount) D(cuDeviceGetDevResource)
D(cuFuncSetCacheConfig) D(cuGreenCtxCreate) D(cuGreenCtxDestroy) D(cuGreenCtxStreamCreate) D(cuLaunchCooperativeKernel) D(cuLinkAddData_v2)
D(cuLinkComplete) D(cuLinkCreate_v2) D(cuMemExportToShareableHandle) D(cuMemGetAllocationPropertiesFromHandle) D(cuMemImportFromShareableHandle)
D(cuMemRetainAllocationHandle) D(cuMulticastAddDevice) D(cuMulticastBindMem) D(cuMulticastCreate) D(cuMulticastUnbind)
D(cuOccupancyMaxActiveBlocksPerMultiprocessor) D(cuStreamWriteValue32) D(cuTensorMapEncodeTiled) D(cuFuncGetAttribute) D(cuFuncSetAttribute)
D(cuModuleGetFunction) D(cuModuleLoad) D(cuModuleLoadData) D(cuModuleLoadDataEx) D(cuModuleUnload)
